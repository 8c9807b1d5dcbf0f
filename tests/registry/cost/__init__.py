"""Tests of the costs."""
