"""Tests of the device: batches, the worker, memory, errors."""
