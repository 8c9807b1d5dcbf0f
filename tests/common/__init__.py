"""Tests of the registry, in the same rooms."""
