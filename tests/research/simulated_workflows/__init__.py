"""Tests of the simulated workflows."""
