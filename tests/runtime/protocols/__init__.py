"""Tests of the protocols: gRPC, invalid input, errors, other clients."""
