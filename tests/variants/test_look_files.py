"""The files of a trained look: written, read, and refused where damaged."""

import sys
from pathlib import Path

import numpy as np
import orjson
import pytest
from safetensors.numpy import load_file, save_file

from research.looks.training import principal_components, train, write_sneakpeek
from variants.look_files import (
    ARRAYS,
    FACTS,
    MAX_DIMENSIONS,
    MAX_EXAMPLES,
    InvalidSneakPeek,
    NearestExamples,
    fetch,
    read_sneakpeek,
    stratified_subset,
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rng = np.random.default_rng(1)
    labels = rng.integers(0, 2, 60)
    rows = (rng.standard_normal((60, 4)) + labels[:, None]).astype(np.float32)
    trained = train(rows, labels, (rows[:20], labels[:20]), classes=2, k=3)
    write_sneakpeek(
        tmp_path / "peek", trained, application="default/a", classes=("no", "yes"), inputs=("x",)
    )
    return tmp_path / "peek"


def test_what_is_written_is_read(folder: Path) -> None:
    model = read_sneakpeek(folder)
    assert (model.application, model.classes, model.inputs) == ("default/a", ("no", "yes"), ("x",))
    assert model.examples.k == 3
    assert sum(map(sum, model.confusion)) == 20
    found = model.examples.evidence(np.zeros((2, 4), np.float32))
    assert found.sum(axis=1).tolist() == [3, 3]


def test_damaged_files_are_refused(folder: Path) -> None:
    facts = orjson.loads((folder / FACTS).read_bytes())
    for change, problem in (
        ({"k": 0}, "k must be 1 to 60"),
        ({"pilotlight_sneakpeek": 9}, "version must be 1"),
        ({"classes": ["only"]}, "labels must be 60 numbers from 0 to 0"),
        ({"confusion": [[1]]}, "confusion must be 2 rows of 2"),
    ):
        (folder / FACTS).write_bytes(orjson.dumps(facts | change))
        with pytest.raises(InvalidSneakPeek, match=problem):
            read_sneakpeek(folder)
    (folder / FACTS).write_bytes(orjson.dumps(facts))
    tensors = load_file(folder / ARRAYS)
    dimensions = tensors["vectors"].shape[1]
    for changed, problem in (
        ({"centre": np.array(0.0), "projection": np.zeros(dimensions)}, r"centre must be \[feat"),
        ({"projection": np.zeros((1, 1))}, "projection must be"),
        ({"centre": np.array([np.nan, 0.0, 0.0, 0.0])}, "arrays must be finite"),
    ):
        save_file(tensors | changed, folder / ARRAYS)
        with pytest.raises(InvalidSneakPeek, match=problem):
            read_sneakpeek(folder)
    save_file(tensors, folder / ARRAYS)
    arrays = (folder / ARRAYS).read_bytes()
    (folder / ARRAYS).write_bytes(arrays[: len(arrays) // 2])
    with pytest.raises(InvalidSneakPeek, match="not what `pilotlight sneakpeek train` writes"):
        read_sneakpeek(folder)


def _two_clouds(
    count: int, seed: int, features: int = 4
) -> tuple[
    np.ndarray[tuple[int, int], np.dtype[np.float32]], np.ndarray[tuple[int], np.dtype[np.int64]]
]:
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 2, count)
    rows = rng.standard_normal((count, features)) + 3.0 * labels[:, None]
    return rows.astype(np.float32), labels


def test_evidence_counts_the_labels_of_the_nearest_examples() -> None:
    examples = NearestExamples(
        np.array([[0.0], [1.0], [2.0], [9.0], [10.0]], np.float32),
        np.array([0, 0, 1, 2, 2]),
        classes=3,
        k=3,
        centre=np.array([1.0], np.float32),
        projection=np.eye(1, dtype=np.float32),
    )
    found = examples.evidence(np.array([[1.9], [10.6]], np.float32))
    assert found.tolist() == [[2, 1, 0], [0, 1, 2]]


def test_evidence_equals_a_search_by_distance() -> None:
    rows, labels = _two_clouds(500, 1)
    asked, _ = _two_clouds(20, 2)
    examples = train(rows, labels, (asked, np.zeros(20, np.int64)), classes=2, k=5).examples
    for row, counts in zip(asked, examples.evidence(asked), strict=True):
        nearest = np.argsort(((rows - row) ** 2).sum(axis=1))[:5]
        assert counts.tolist() == np.bincount(labels[nearest], minlength=2).tolist()


def test_the_profile_is_of_the_validation_part() -> None:
    rows, labels = _two_clouds(400, 3, features=2)
    trained = train(rows, labels, _two_clouds(200, 4, features=2), classes=2, k=5)
    assert trained.confusion.sum() == 200
    assert np.trace(trained.confusion) / 200 > 0.9


def test_many_dimensions_and_examples_are_bounded() -> None:
    rows, labels = _two_clouds(MAX_EXAMPLES + 900, 5, features=MAX_DIMENSIONS + 6)
    trained = train(rows, labels, (rows[:50], labels[:50]), classes=2, k=5)
    assert trained.examples.vectors.shape == (len(trained.examples.labels), MAX_DIMENSIONS)
    assert len(trained.examples.labels) <= MAX_EXAMPLES
    assert np.mean(trained.examples.labels) == pytest.approx(labels.mean(), abs=0.01)
    components = principal_components(rows - rows.mean(axis=0), 8)
    assert components.T @ components == pytest.approx(np.eye(8), abs=1e-5)


def test_a_subset_keeps_every_class() -> None:
    labels = np.array([0] * 990 + [1] * 10)
    assert np.unique(labels[stratified_subset(labels, 50)]).tolist() == [0, 1]


@pytest.mark.parametrize(
    ("uri", "package", "extra"),
    [("s3://bucket/a", "boto3", "variants"), ("gs://bucket/a", "kserve_storage", "storage")],
)
def test_a_missing_package_is_told_with_its_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uri: str, package: str, extra: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)  # as if it were not installed
    with pytest.raises(InvalidSneakPeek, match=rf"{package}: pip install 'pilotlight\[{extra}\]'"):
        fetch(uri, tmp_path)
