"""Which variant of an application, and which version of a model, serves a request. Pure."""
