"""Experiments behind `docs/experiments/`: a room per family, all listed in `experiments`."""
