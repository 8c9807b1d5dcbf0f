"""The KServe predictor: many models per pod, tiered cache, device work."""
