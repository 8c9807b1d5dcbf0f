"""Files of labelled examples: what is read, and every mistake with its row."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from variants.labelled_examples import InvalidExamples, read_examples

GOOD: dict[str, Any] = {
    "features": np.arange(12, dtype=np.float32).reshape(4, 3),
    "labels": np.array([0, 1, 0, 1]),
}


def _problems(path: Path, **arrays: Any) -> str:
    np.savez(path, **(GOOD | arrays))
    with pytest.raises(InvalidExamples) as found:
        read_examples(path, classes=2, inputs=[])
    return "\n".join(found.value.problems)


def test_npz_and_safetensors_hold_the_same(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", **GOOD, **{"predicted small": GOOD["labels"]})
    save_file(GOOD, tmp_path / "a.safetensors")
    for name in ("a.npz", "a.safetensors"):
        found = read_examples(tmp_path / name, classes=2, inputs=[])
        assert found.features().tolist() == GOOD["features"].tolist()
        assert found.labels.tolist() == [0, 1, 0, 1]


def test_mistakes_name_their_rows(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    features = GOOD["features"].copy()
    features[1, 2], features[3, 0] = np.nan, np.inf
    assert "features must be finite in rows 1, 3" in _problems(path, features=features)
    labels = np.array([0, 1, 5, 0])
    assert "labels must be 0 to 1" in _problems(path, labels=labels)
    assert "was 5 in row 2" in _problems(path, labels=labels)
    assert "classes without an example: 1" in _problems(path, labels=np.zeros(4, np.int64))
    assert "was float64 [4]" in _problems(path, labels=np.ones(4) / 2)
    assert "a row per label, was float32 [4, 3]" in _problems(path, labels=np.array([0, 1]))
    both = _problems(path, features=features, labels=labels)
    assert "finite" in both
    assert "was 5" in both


def test_truncated_pickled_and_missing_files_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", **GOOD)
    content = (tmp_path / "a.npz").read_bytes()
    (tmp_path / "cut.npz").write_bytes(content[: len(content) // 2])
    (tmp_path / "pickled.npz").write_bytes(pickle.dumps(GOOD))
    np.savez(tmp_path / "object.npz", labels=np.array([object()]), allow_pickle=True)
    (tmp_path / "cut.safetensors").write_bytes(b"\x10\x00\x00\x00\x00\x00\x00\x00{}")
    for name in ("cut.npz", "pickled.npz", "object.npz", "cut.safetensors", "none.npz"):
        with pytest.raises(InvalidExamples, match=f"{name}: cannot be read as"):
            read_examples(tmp_path / name, classes=2, inputs=[])


def test_a_named_input_that_is_missing_is_an_error(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", **GOOD)
    with pytest.raises(InvalidExamples, match="'pixels' is missing; the file has features, labels"):
        read_examples(tmp_path / "a.npz", classes=2, inputs=["pixels"])
