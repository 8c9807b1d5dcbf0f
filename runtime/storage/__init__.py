"""Storage: where models come from, and how their bytes arrive."""
