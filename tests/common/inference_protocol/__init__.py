"""Tests of the Open Inference Protocol's forms: JSON and binary bodies, gRPC messages."""
