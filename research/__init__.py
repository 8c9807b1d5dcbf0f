"""Experiments and baselines of papers, as plug-ins of Pilotlight: a distribution of its own."""
