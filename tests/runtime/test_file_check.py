"""A pod says what is wrong with a model's files before it is loaded."""

import json
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from safetensors.torch import load_file, save_file

from tests import servers
from tests.runtime.conftest import Cluster
from tests.runtime.http import post, predict

WEIGHTS = "model.safetensors"


def check(pod: servers.Pod, cluster: Cluster, name: str) -> httpx.Response:
    generation = cluster.record(name).spec.generation
    path = f"/v2/repository/models/default~{name}/versions/{generation}/check"
    return post(f"{pod.url}{path}")


def absent(folder: Path) -> None:
    (folder / WEIGHTS).unlink()


def absent_shard(folder: Path) -> None:
    (folder / WEIGHTS).rename(folder / "model-00001-of-00002.safetensors")
    names = load_file(folder / "model-00001-of-00002.safetensors")
    places = dict.fromkeys(names, "model-00001-of-00002.safetensors")
    places[next(iter(names))] = "model-00002-of-00002.safetensors"
    index = {"metadata": {}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def truncated(folder: Path) -> None:
    content = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(content[:-1000])


def wrong_shape(folder: Path) -> None:
    tensors = load_file(folder / WEIGHTS)
    name = next(name for name in tensors if name.endswith("word_embeddings.weight"))
    tensors[name] = tensors[name][:-1].contiguous()
    save_file(tensors, folder / WEIGHTS)


def missing_tensor(folder: Path) -> None:
    tensors = load_file(folder / WEIGHTS)
    tensors.pop(next(name for name in tensors if name.endswith("query.weight")))
    save_file(tensors, folder / WEIGHTS)


@pytest.mark.parametrize(
    ("spoil", "status", "told"),
    [
        pytest.param(absent, 422, "no *.safetensors file", id="absent"),
        pytest.param(absent_shard, 422, "lacks ['model-00002-of-00002", id="absent shard"),
        pytest.param(truncated, 422, "corrupt or truncated: its header promises", id="truncated"),
        pytest.param(
            lambda folder: (folder / WEIGHTS).write_bytes(b"\xff" * 5000),
            422,
            "corrupt",
            id="garbage",
        ),
        pytest.param(
            lambda folder: (folder / WEIGHTS).write_bytes(b""), 422, "truncated", id="empty"
        ),
        pytest.param(wrong_shape, 422, "do not fit config.json", id="shape"),
        pytest.param(missing_tensor, 422, "query.weight", id="tensor"),
        pytest.param(
            lambda folder: (folder / WEIGHTS).rename(folder / "pytorch_model.bin"),
            501,
            "convert the model to safetensors",
            id="pickle",
        ),
    ],
)
def test_files_that_cannot_be_served_are_told_without_a_load(
    cluster: Cluster,
    models: Path,
    tmp_path: Path,
    spoil: Callable[[Path], object],
    status: int,
    told: str,
) -> None:
    folder = servers.copy_model(models / "tiny-bert", tmp_path / "m")
    whole = {path.name: path.read_bytes() for path in folder.iterdir()}
    spoil(folder)
    cluster.declare("m", folder)
    pod = cluster.pod()
    answer = check(pod, cluster, "m")
    assert answer.status_code == status, answer.text
    assert told in answer.json()["error"]
    assert answer.headers["x-pilotlight-not-executed"] == "load-failed"
    for path in folder.iterdir():
        path.unlink()
    for name, content in whole.items():
        (folder / name).write_bytes(content)
    assert check(pod, cluster, "m").status_code == 200  # once the files are corrected
    assert predict(pod.url, "m", "x").headers["x-pilotlight-start"] == "remote"


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        pytest.param("model.skops", b"", "model.skops is empty", id="empty skops"),
        pytest.param("model.skops", b"\x80\x04\x95pickle", "is no file of skops", id="pickle"),
        pytest.param("model.ubj", b"", "model.ubj is empty", id="empty booster"),
        pytest.param("model.onnx", b"", "the file is empty", id="empty onnx"),
    ],
)
def test_files_that_no_library_can_read_are_told_without_a_load(
    cluster: Cluster, tmp_path: Path, name: str, content: bytes, told: str
) -> None:
    folder = tmp_path / "m"
    folder.mkdir()
    (folder / name).write_bytes(content)
    cluster.declare("m", folder)
    answer = check(cluster.pod(), cluster, "m")
    assert (answer.status_code, told in answer.json()["error"]) == (422, True), answer.text
