"""Randomness by purpose: one seed for a whole trace, an independent stream for each use of it."""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Seed:
    """A place in a tree of streams: the same root and path give the same numbers, always."""

    root: int
    path: tuple[int, ...] = ()

    def of(self, *purpose: str | int) -> Seed:
        """The stream for a purpose; what else is drawn, and when, does not touch it."""
        keys = (zlib.crc32(part.encode()) if isinstance(part, str) else part for part in purpose)
        return Seed(self.root, (*self.path, *keys))

    def rng(self) -> np.random.Generator:
        """The stream from its beginning."""
        return np.random.default_rng(np.random.SeedSequence(self.root, spawn_key=self.path))
