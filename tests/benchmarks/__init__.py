"""Tests of benchmarks that need no other servers and no GPU."""
