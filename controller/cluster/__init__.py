"""The API server: calls, watched objects, leadership."""
