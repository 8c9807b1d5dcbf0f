"""The tiers `disk` and `host`: what a node keeps of models, and where a pod has them."""
