"""The files of a trained look: written, read, and refused where damaged."""

from pathlib import Path

import numpy as np
import orjson
import pytest
from safetensors.numpy import load_file, save_file

from variants.looks.trained_file import ARRAYS, FACTS, InvalidSneakPeek, read_sneakpeek
from variants.looks.training import train, write_sneakpeek


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
