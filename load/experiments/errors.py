"""What can go wrong in an experiment."""

from __future__ import annotations

from load.errors import LoadError


class ExperimentError(LoadError):
    """An experiment cannot be run as asked; the text says what is missing."""
