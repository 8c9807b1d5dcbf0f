"""What runs each format of models: transformers networks, exported programs, diffusion."""
