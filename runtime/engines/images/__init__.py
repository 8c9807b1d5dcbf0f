"""Diffusion pipelines: text to image, one step at a time."""
