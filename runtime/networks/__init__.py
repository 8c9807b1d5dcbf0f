"""Networks without weights, weights without networks, and models made locally."""
