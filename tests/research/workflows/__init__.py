"""Tests of published scheduling policies."""
