"""HTTP front door: routing, queueing and admission of inference requests."""
