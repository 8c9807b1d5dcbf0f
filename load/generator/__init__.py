"""The live, open-loop load generator: plays a trace against a URL and records every request."""
