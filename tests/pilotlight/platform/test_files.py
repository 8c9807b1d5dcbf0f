"""Models as people have their files, from their declaration to an answer, on a real platform."""

import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pilotlight.sample_models.make_model import make_model
from tests import servers
from tests.hub import Hub, running_hub
from tests.pilotlight.conftest import CommandResult
from tests.pilotlight.platform.running import RunningPlatform, start_platform

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "tiny-bert"
    make_model("tiny-bert", folder)
    return folder


@pytest.fixture(scope="module")
def hub(model: Path) -> Iterator[Hub]:
    files = {path.name: path.read_bytes() for path in model.iterdir()}
    with running_hub({"acme/tiny": {"main": files, "v2": files}}, token="hf_secret") as hub:
        yield hub


@pytest.fixture(scope="module")
def platform(hub: Hub, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningPlatform]:
    """Its `up` declares one model that is on the hub, and one that is nowhere."""
    home = tmp_path_factory.mktemp("home")
    declared = write(home, service("at-start", "hf://acme/tiny"), service("none", "file:///none"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_ENDPOINT", hub.url)
        patch.setenv("HF_TOKEN", "hf_secret")
        patch.setenv("HF_HOME", str(home / "hub"))
        patch.delenv("HF_HUB_OFFLINE", raising=False)
        running = start_platform(home, "--pods", "1", "--no-s3", "-f", declared)
        try:
            yield running
        finally:
            running.cli("down")


def service(name: str, uri: str) -> dict[str, Any]:
    return {
        "apiVersion": "serving.kserve.io/v1beta1",
        "kind": "InferenceService",
        "metadata": {"name": name},
        "spec": {
            "predictor": {"model": {"modelFormat": {"name": "huggingface"}, "storageUri": uri}}
        },
    }


def write(folder: Path, *documents: dict[str, Any]) -> str:
    path = folder / "models.yaml"
    path.write_text("\n---\n".join(map(json.dumps, documents)))
    return str(path)


def apply(platform: RunningPlatform, folder: Path, name: str, uri: str) -> CommandResult:
    applied = platform.cli("apply", "--strict", "-f", write(folder, service(name, uri)))
    with platform.client() as client:
        path = f"/v2/models/{name}/ready"
        servers.wait_until(lambda: client.get(path).status_code != 404, what=f"{name} known")
    return applied


def predict(platform: RunningPlatform, name: str) -> Any:
    with platform.client() as client:
        return client.post(f"/v1/models/{name}:predict", json={"instances": ["quick brown fox"]})


def state(platform: RunningPlatform, name: str) -> Any:
    return next(each for each in platform.get("models") if each["name"] == name)


@pytest.mark.parametrize("uri", ["hf://acme/tiny", "hf://acme/tiny:v2", "hf://acme/tiny@v2"])
def test_pods_download_from_the_users_hub(
    platform: RunningPlatform, tmp_path: Path, uri: str
) -> None:
    applied = apply(platform, tmp_path, "tiny", uri)
    assert "not checked: hf:// is read at the first load" in applied.out
    assert predict(platform, "tiny").status_code == 200


def test_up_says_which_of_its_models_cannot_be_read(platform: RunningPlatform) -> None:
    assert predict(platform, "at-start").status_code == 200
    found = state(platform, "none")
    assert not found["ready"]
    assert found["failure"]["reason"] == "Unreadable"
    assert "does not exist" in found["failure"]["message"]


def test_an_unreadable_model_is_not_ready_until_its_files_are_right(
    platform: RunningPlatform, model: Path, tmp_path: Path
) -> None:
    folder = servers.copy_model(model, tmp_path / "cut")
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[:-1000])
    applied = apply(platform, tmp_path, "cut", folder.as_uri())
    assert applied.status == 1
    assert "cannot be read: model.safetensors is corrupt or truncated" in applied.out
    assert "not served (--strict): default/cut" in applied.err
    assert not state(platform, "cut")["ready"]
    assert "Unreadable: model.safetensors" in platform.cli("get", "models", "cut").out
    answer = predict(platform, "cut")
    assert (answer.status_code, "retry-after" in answer.headers) == (422, False)
    (folder / "model.safetensors").write_bytes(whole)
    servers.wait_until(lambda: predict(platform, "cut").status_code == 200, what="cut recovers")
    servers.wait_until(lambda: state(platform, "cut")["ready"], what="cut is ready")


def test_an_archive_of_a_folder_is_served(
    platform: RunningPlatform, model: Path, tmp_path: Path
) -> None:
    with tarfile.open(tmp_path / "model.tar.gz", "w:gz") as archive:
        archive.add(model, "tiny-bert")
    applied = apply(platform, tmp_path, "packed", (tmp_path / "model.tar.gz").as_uri())
    assert applied.status == 0, applied.out
    assert predict(platform, "packed").status_code == 200
