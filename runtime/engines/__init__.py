"""The engines of each model format: transformers' networks, exported programs, diffusion."""
