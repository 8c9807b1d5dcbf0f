"""Descriptions of simulated clusters: values, and YAML files."""
