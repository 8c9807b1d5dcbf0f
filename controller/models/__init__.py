"""InferenceServices of models: written to the registry, status written back."""
