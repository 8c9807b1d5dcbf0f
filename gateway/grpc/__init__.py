"""V2 over gRPC, with the decisions, limits and records of inference over HTTP."""
