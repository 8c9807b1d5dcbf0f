"""Selection of the model version that serves a request. Pure."""
