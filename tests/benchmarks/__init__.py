"""Tests of the runtime: real pods, real Redis, a real S3 server, tiny models."""
