"""Tests of load.experiments.regret."""
