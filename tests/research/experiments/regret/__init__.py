"""Tests of research.experiments.regret."""
