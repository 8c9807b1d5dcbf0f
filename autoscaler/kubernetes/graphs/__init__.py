"""InferenceGraphs of the cluster as workflows in the registries of their pools."""
