"""The tiers host and disk, and the eviction of models from tiers."""
