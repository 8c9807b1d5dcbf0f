"""InferenceApplications of the cluster in the registries, and their status."""
