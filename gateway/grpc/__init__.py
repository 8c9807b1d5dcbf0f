"""gRPC: V2, with the decisions, limits and records of inference over HTTP, and its server."""
