"""Tests of tensor batching, and of batches of real networks."""
