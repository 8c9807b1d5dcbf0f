"""Trains a look: nearest neighbours among labelled examples.

Dimensions and examples are bounded, since the time of a look grows with both: principal components,
and a subset in which classes have the shares of the whole.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import orjson
from numpy.typing import NDArray
from safetensors.numpy import save_file

from variants.look_files import (
    ARRAYS,
    FACTS,
    MAX_DIMENSIONS,
    MAX_EXAMPLES,
    VERSION,
    Labels,
    NearestExamples,
    Vectors,
    confusion_matrix,
    stratified_subset,
)
from variants.planning.window import class_probabilities


@dataclass(frozen=True, slots=True, eq=False)
class TrainedSneakPeek:
    examples: NearestExamples
    confusion: NDArray[np.int64]
    """[classes, classes] on the validation part; rows are true classes."""


def train(
    rows: Vectors,
    labels: Labels,
    validation: tuple[Vectors, Labels],
    *,
    classes: int,
    k: int,
    projection: Vectors | None = None,
) -> TrainedSneakPeek:
    """`projection` None: principal components if needed."""
    centre = rows.mean(axis=0).astype(np.float32)
    if projection is None:
        projection = principal_components(rows - centre, MAX_DIMENSIONS)
    kept = stratified_subset(labels, MAX_EXAMPLES)
    vectors, kept_labels = (rows[kept] - centre) @ projection, labels[kept]
    examples = NearestExamples(
        vectors, kept_labels, classes=classes, k=k, centre=centre, projection=projection
    )
    predicted = predicted_labels(examples.evidence(validation[0]))
    confusion = confusion_matrix(validation[1], predicted, classes)
    return TrainedSneakPeek(examples, confusion)


def predicted_labels(evidence: NDArray[np.float64]) -> Labels:
    """The class of highest probability, under the uninformative prior."""
    labels: Labels = class_probabilities(evidence).argmax(axis=1)
    return labels


def principal_components(centred: Vectors, max_dimensions: int) -> Vectors:
    """[features, dimensions] of largest variance; the identity if there are no more features."""
    features = centred.shape[1]
    if features <= max_dimensions:
        return np.eye(features, dtype=np.float32)
    _, vectors = np.linalg.eigh(np.cov(centred, rowvar=False))
    chosen = vectors[:, ::-1][:, :max_dimensions]
    signs = np.sign(chosen[np.abs(chosen).argmax(axis=0), np.arange(max_dimensions)])
    components: Vectors = (chosen * signs).astype(np.float32)
    return components


def write_sneakpeek(
    folder: Path,
    trained: TrainedSneakPeek,
    *,
    application: str,
    classes: tuple[str, ...],
    inputs: tuple[str, ...],
) -> None:
    """Write both files; the JSON last, which makes the folder complete."""
    folder.mkdir(parents=True, exist_ok=True)
    examples = trained.examples
    arrays: dict[str, np.ndarray] = {
        "vectors": examples.vectors,
        "labels": examples.labels,
        "centre": np.ascontiguousarray(examples.centre),
        "projection": np.ascontiguousarray(examples.projection),
    }
    save_file(arrays, folder / ARRAYS)
    facts = {
        "pilotlight_sneakpeek": VERSION,
        "application": application,
        "classes": classes,
        "inputs": inputs,
        "k": examples.k,
        "confusion": trained.confusion.tolist(),
    }
    (folder / FACTS).write_bytes(orjson.dumps(facts, option=orjson.OPT_INDENT_2))
