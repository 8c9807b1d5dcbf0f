"""Benchmarks: scripts with a fixed seed that print marks and keep their raw samples."""
