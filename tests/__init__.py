"""Tests, one folder per package."""
