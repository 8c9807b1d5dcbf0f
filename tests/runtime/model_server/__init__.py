"""Tests of pods whose models a model server runs."""
