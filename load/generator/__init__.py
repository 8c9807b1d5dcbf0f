"""Open-loop load generator: sends a trace to a server and records every request."""
