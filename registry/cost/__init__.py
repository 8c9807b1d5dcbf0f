"""What requests and loads cost each other, for routing and loading alike; pure."""
