"""How far it scales: clusters of many sizes in the simulator, and a real Redis under load."""
