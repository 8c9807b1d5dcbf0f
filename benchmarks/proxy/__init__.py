"""Warm requests through the gateway and through its peers, on one machine, in one run."""
