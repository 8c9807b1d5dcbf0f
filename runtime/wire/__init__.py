"""Formats of requests and responses: tensors, V1, V2 in JSON and binary, gRPC."""
