"""Sample models: published architectures with random weights, made without any download."""
