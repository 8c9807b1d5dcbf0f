"""Shared by all experiments: interface, parallel runs, result log, text, live platform."""
