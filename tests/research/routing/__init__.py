"""Tests of published routing policies."""
