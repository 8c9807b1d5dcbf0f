"""Tests of storage systems and downloads: a real S3 server, faults in between, other processes."""
