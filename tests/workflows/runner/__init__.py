"""Tests of the runner: real processes."""
