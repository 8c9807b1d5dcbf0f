"""Training of the look at an application's data, and the files that it gives.

Dimensions and examples are bounded, since the time of a look grows with both: principal components,
and a subset in which classes have the shares of the whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import orjson
from numpy.typing import NDArray
from safetensors.numpy import save_file

from variants.looks.trained_file import (
    ARRAYS,
    FACTS,
    MAX_DIMENSIONS,
    MAX_EXAMPLES,
    VERSION,
    Labels,
    NearestExamples,
    Vectors,
)
from variants.planning.utility import class_probabilities

CANDIDATES: Final = (1, 3, 5, 7, 9, 15)
"""Values of k that cross-validation compares."""
_FOLDS: Final = 5


@dataclass(frozen=True, slots=True, eq=False)
class TrainedSneakPeek:
    examples: NearestExamples
    confusion: NDArray[np.int64]
    """[classes, classes] on the validation part; rows are true classes."""
    fold_accuracy: dict[int, float]
    """By k, where it was chosen by cross-validation."""


def train(
    rows: Vectors,
    labels: Labels,
    validation: tuple[Vectors, Labels],
    *,
    classes: int,
    k: int | None,
    projection: Vectors | None = None,
) -> TrainedSneakPeek:
    """`k` None: chosen by cross-validation; `projection` None: principal components if needed."""
    centre = rows.mean(axis=0).astype(np.float32)
    if projection is None:
        projection = principal_components(rows - centre, MAX_DIMENSIONS)
    kept = stratified_subset(labels, MAX_EXAMPLES)
    vectors, kept_labels = (rows[kept] - centre) @ projection, labels[kept]
    fold_accuracy: dict[int, float] = {}
    if k is None:
        fold_accuracy = cross_validated(vectors, kept_labels, classes=classes)
        k = max(fold_accuracy, key=lambda each: (fold_accuracy[each], -each))
    examples = NearestExamples.of(
        vectors, kept_labels, classes=classes, k=k, centre=centre, projection=projection
    )
    predicted = predicted_labels(examples.evidence(validation[0]))
    confusion = confusion_matrix(validation[1], predicted, classes)
    return TrainedSneakPeek(examples, confusion, fold_accuracy)


def predicted_labels(evidence: NDArray[np.float64]) -> Labels:
    """The class of highest probability, under the uninformative prior."""
    labels: Labels = class_probabilities(evidence).argmax(axis=1)
    return labels


def confusion_matrix(labels: Labels, predicted: Labels, classes: int) -> NDArray[np.int64]:
    """Counts by true class (row) and predicted class (column)."""
    counts = np.zeros((classes, classes), np.int64)
    np.add.at(counts, (labels, predicted), 1)
    return counts


def cross_validated(
    vectors: Vectors, labels: Labels, *, classes: int, candidates: Sequence[int] = CANDIDATES
) -> dict[int, float]:
    """The accuracy of each k on held-out fifths, in which classes have the shares of the whole."""
    fold = np.empty(len(labels), np.int64)
    for label in range(classes):
        members = np.flatnonzero(labels == label)
        fold[members] = np.arange(len(members)) % _FOLDS
    nothing = np.zeros(vectors.shape[1], np.float32)
    same = np.eye(vectors.shape[1], dtype=np.float32)
    hits = dict.fromkeys(candidates, 0)
    for at in range(_FOLDS):
        inside, outside = fold != at, fold == at
        for k in candidates:
            examples = NearestExamples.of(
                vectors[inside],
                labels[inside],
                classes=classes,
                k=k,
                centre=nothing,
                projection=same,
            )
            found = predicted_labels(examples.evidence_of(vectors[outside]))
            hits[k] += int((found == labels[outside]).sum())
    return {k: count / len(labels) for k, count in hits.items()}


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


def stratified_subset(labels: Labels, max_examples: int) -> NDArray[np.int64]:
    """Indexes of at most `max_examples` examples, evenly spaced within each class."""
    if len(labels) <= max_examples:
        return np.arange(len(labels))
    chosen = []
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        count = max(1, len(members) * max_examples // len(labels))
        chosen.append(members[np.linspace(0, len(members) - 1, count).astype(np.int64)])
    return np.sort(np.concatenate(chosen))[:max_examples]


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
        "fold_accuracy": {str(k): share for k, share in trained.fold_accuracy.items()},
    }
    (folder / FACTS).write_bytes(orjson.dumps(facts, option=orjson.OPT_INDENT_2))
