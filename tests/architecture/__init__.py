"""How much a reader has to know: files that a request, a load or a tick visits."""
