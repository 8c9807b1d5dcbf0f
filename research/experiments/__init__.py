"""Experiments behind `research/docs/`: a room per family, all listed in `pyproject.toml`."""
