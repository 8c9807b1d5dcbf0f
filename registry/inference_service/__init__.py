"""InferenceService YAML, its annotations, and the text formats in them."""
