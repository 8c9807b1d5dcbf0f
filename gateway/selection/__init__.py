"""Which version or variant of a model answers a request."""
