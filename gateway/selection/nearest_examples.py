"""Evidence by exact nearest neighbours among labelled examples; Wolfrath et al. 2025, section 4.2.

Pure; numpy only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Vectors = NDArray[np.float32]
    Labels = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class NearestExamples:
    """Labelled vectors, [examples, dimensions], and how rows of a request become such vectors."""

    vectors: Vectors
    labels: Labels
    """[examples], from 0 to `classes` - 1."""
    classes: int
    k: int
    centre: Vectors
    """[features], subtracted from a row."""
    projection: Vectors
    """[features, dimensions], applied then."""
    half_norms: Vectors
    """[examples]: half the squared length of each vector."""

    @classmethod
    def of(
        cls, vectors: Vectors, labels: Labels, *, classes: int, k: int, centre: Vectors,
        projection: Vectors,
    ) -> NearestExamples:  # fmt: skip
        vectors = np.ascontiguousarray(vectors, np.float32)
        half_norms = (np.einsum("ij,ij->i", vectors, vectors) / 2).astype(np.float32)
        return cls(vectors, labels, classes, k, centre, projection, half_norms)

    def evidence(self, rows: Vectors) -> NDArray[np.float64]:
        """The labels of the k nearest examples of each row, counted: [rows, classes]."""
        projected: Vectors = (rows - self.centre).astype(np.float32) @ self.projection
        return self.evidence_of(projected)

    def evidence_of(self, projected: Vectors) -> NDArray[np.float64]:
        """As `evidence`, for rows in the space of the examples."""
        # Half the squared distance, less the row's own half square, which is the same for all.
        distances = self.half_norms - projected @ self.vectors.T
        k = min(self.k, len(self.vectors))
        nearest = np.argpartition(distances, k - 1, axis=1)[:, :k]
        counts = np.zeros((len(projected), self.classes))
        np.add.at(counts, (np.arange(len(projected))[:, None], self.labels[nearest]), 1.0)
        return counts
