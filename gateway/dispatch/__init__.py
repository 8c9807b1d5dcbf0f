"""Placing a request: queue, reservation, the exchange with the pod, retries."""
