"""Tests of the wire formats: V2 in JSON and binary, gRPC messages."""
