"""Seeded randomness: one independent random stream per purpose, and Zipf's law over models."""

import zlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Seed:
    """A node in a tree of random streams: the same root and path always give the same numbers."""

    root: int
    path: tuple[int, ...] = ()

    def derive(self, *purpose: str | int) -> "Seed":
        """The seed of one purpose, independent of draws for other purposes."""
        keys = (zlib.crc32(part.encode()) if isinstance(part, str) else part for part in purpose)
        return Seed(self.root, (*self.path, *keys))

    def rng(self) -> np.random.Generator:
        """A generator at the start of this stream."""
        return np.random.default_rng(np.random.SeedSequence(self.root, spawn_key=self.path))


def zipf_shares(models: int, exponent: float) -> NDArray[np.float64]:
    """The share of requests of each rank: proportional to 1 / rank^exponent; 0 is uniform."""
    weights = np.arange(1, models + 1, dtype=np.float64) ** -exponent
    shares: NDArray[np.float64] = weights / weights.sum()
    return shares


class Popularity:
    """Draws models by rank; every `drift_s` seconds a random model becomes the most popular one.

    The models that ranked above it move down by a rank. Ranks are constant if `drift_s` is None.
    """

    def __init__(
        self, *, models: int, exponent: float, drift_s: float | None, rng: np.random.Generator
    ) -> None:
        self._cumulative = np.cumsum(zipf_shares(models, exponent))
        self._by_rank = np.arange(models, dtype=np.int32)
        self._drift_s = drift_s
        self._epoch = 0
        self._draws, self._changes = rng.spawn(2)

    def models_at(self, at_s: NDArray[np.float64]) -> NDArray[np.int32]:
        """A model for each time; times are sorted and not before those of earlier calls."""
        draws = self._draws.random(len(at_s)) * self._cumulative[-1]
        ranks = np.searchsorted(self._cumulative, draws, side="right")
        ranks = np.minimum(ranks, len(self._cumulative) - 1)
        if self._drift_s is None:
            steady: NDArray[np.int32] = self._by_rank[ranks]
            return steady
        epochs = np.floor(at_s / self._drift_s).astype(np.int64)
        models = np.empty(len(at_s), np.int32)
        for epoch in np.unique(epochs).tolist():
            self._advance(epoch)
            chosen = epochs == epoch
            models[chosen] = self._by_rank[ranks[chosen]]
        return models

    def _advance(self, epoch: int) -> None:
        while self._epoch < epoch:
            rank = int(self._changes.integers(len(self._by_rank)))
            self._by_rank[: rank + 1] = np.roll(self._by_rank[: rank + 1], 1)
            self._epoch += 1
