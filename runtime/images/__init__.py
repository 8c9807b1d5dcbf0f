"""Text to image: the parts of a Stable Diffusion pipeline, and images made step by step."""
