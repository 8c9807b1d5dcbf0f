"""Which variant of an application serves a request. Pure."""
