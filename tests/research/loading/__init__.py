"""Tests of published loading policies."""
