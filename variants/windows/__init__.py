"""Windows of applications' requests: what is planned together, and the variant of each."""
