"""Goodput and fairness of a gateway and a pod that are sent more than they can serve."""
