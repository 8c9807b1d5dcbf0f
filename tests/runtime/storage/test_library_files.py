"""Which file of a folder is the model, of those that a library reads."""

from __future__ import annotations

import pytest

from runtime.errors import ModelInvalid
from runtime.storage.library_files import library_files
from runtime.storage.listing import RemoteFile, asset_files


@pytest.mark.parametrize(
    ("paths", "expected"),
    [
        pytest.param(["model.onnx", "README.md"], ("model.onnx",), id="onnx"),
        pytest.param(
            ["model.onnx", "w.bin", "labels.txt"], ("model.onnx", "w.bin"), id="external data"
        ),
        pytest.param(["iris.skops", "requirements.txt"], ("iris.skops",), id="skops"),
        pytest.param(["model.json", "model-settings.json"], ("model.json",), id="xgboost"),
        pytest.param(["model.txt", "readme.txt"], ("model.txt",), id="lightgbm"),
        pytest.param(["1/model.onnx", "2/model.onnx", "10/model.onnx", "config.pbtxt"],
                     ("10/model.onnx",), id="highest version by number"),
        pytest.param(["config.json", "model.safetensors", "a.onnx"], (), id="transformers"),
        pytest.param(["config.json", "vocab.txt"], (), id="no weights yet"),
        pytest.param(["model.pt2", "notes.txt"], (), id="exported program"),
        pytest.param([], (), id="empty"),
    ],
)  # fmt: skip
def test_the_model_is_found(paths: list[str], expected: tuple[str, ...]) -> None:
    assert library_files(paths, "s3://b/m") == expected


@pytest.mark.parametrize(
    ("paths", "says"),
    [
        pytest.param(["a.onnx", "b.onnx"], "several models", id="several"),
        pytest.param(["model.joblib"], "skops.io.dump", id="joblib"),
        pytest.param(["1/model.pkl"], "runs code", id="pickle"),
    ],
)
def test_other_folders_are_refused_with_the_way_out(paths: list[str], says: str) -> None:
    with pytest.raises(ModelInvalid, match=says):
        library_files(paths, "s3://b/m")


@pytest.mark.parametrize(
    ("path", "says"),
    [
        pytest.param("1/saved_model.pb", "tf2onnx", id="tensorflow"),
        pytest.param("m.pdmodel", "paddle2onnx", id="paddle"),
        pytest.param("m.pmml", "ONNX", id="pmml"),
        pytest.param("m.mar", "torch.export", id="torchserve"),
    ],
)
def test_formats_without_an_engine_say_so(path: str, says: str) -> None:
    with pytest.raises(ModelInvalid, match=says):
        asset_files([RemoteFile(path, 10)], "s3://b/m")
