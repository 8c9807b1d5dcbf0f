"""Diffusion pipelines for text to image; optional, imported when such a model is loaded."""
