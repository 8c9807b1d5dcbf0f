"""InferenceServices of models: declared in the registry, status written back."""
