"""Placement of requests: queue, reservation, the exchange with the pod, retries."""
