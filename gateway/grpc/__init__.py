"""Inference requests over gRPC, with the decisions, limits and records of those over HTTP."""
