"""A chain of small models: as a workflow, and as a composition of Ray Serve."""
