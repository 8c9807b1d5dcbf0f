"""Experiments on cold starts against idle memory: prewarming, prewarming-live."""
