"""Tests of the sandbox for expressions of models."""
