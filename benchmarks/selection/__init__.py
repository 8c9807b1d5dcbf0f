"""What applications cost and gain: planning, looks, requests, simulation, and a live platform."""
