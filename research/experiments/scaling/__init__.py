"""The experiment scale: simulated clusters of many sizes, and a real Redis under load."""
