"""Tests of the generator."""
