"""Seeded randomness: one seed per trace, an independent random stream per purpose."""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Seed:
    """A node in a tree of random streams: the same root and path always give the same numbers."""

    root: int
    path: tuple[int, ...] = ()

    def derive(self, *purpose: str | int) -> Seed:
        """The seed of one purpose, independent of draws for other purposes."""
        keys = (zlib.crc32(part.encode()) if isinstance(part, str) else part for part in purpose)
        return Seed(self.root, (*self.path, *keys))

    def rng(self) -> np.random.Generator:
        """A generator at the start of this stream."""
        return np.random.default_rng(np.random.SeedSequence(self.root, spawn_key=self.path))
