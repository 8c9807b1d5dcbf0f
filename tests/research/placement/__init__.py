"""Tests of published planners."""
