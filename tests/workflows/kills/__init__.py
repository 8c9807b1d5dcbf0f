"""Kills of everything that runs of workflows depend on."""
