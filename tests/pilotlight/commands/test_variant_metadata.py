"""`apply` says why variants cannot be chosen, by metadata that a pod reads from their files."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from registry.domain.application import AccuracyProfile, InputTensor
from registry.domain.pod import PodInfo
from registry.redis.client import Registry
from tests import servers
from tests.http_server import Handler, http_server
from tests.pilotlight.conftest import Cli
from tests.registry.redis.clients import act

APPLICATION = """
apiVersion: pilotlight.io/v1alpha1
kind: InferenceApplication
metadata: {name: digits}
spec: {classes: [even, odd], inputs: [{name: features, shape: [-1, 64]}]}
"""
VARIANT = """
---
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata: {name: NAME, annotations: {pilotlight.io/application: digits}}
spec: {predictor: {model: {modelFormat: {name: pytorch}, storageUri: "file:///NAME"}}}
"""


def _metadata(output: str, *shape: int) -> dict[str, Any]:
    return {
        "inputs": [{"name": "features", "datatype": "FP32", "shape": list(shape)}],
        "outputs": [{"name": output, "datatype": "INT64", "shape": [-1]}],
    }


MODELS = {
    "/v2/models/default~right": _metadata("label", -1, 64),
    "/v2/models/default~wrong": _metadata("class", -1, 8),
}


class _PodServer(Handler):
    """The metadata route of a pod."""

    def do_GET(self) -> None:
        found = MODELS.get(self.path)
        self.answer(200 if found else 404, json.dumps(found or {"error": "not found"}).encode())


@pytest.fixture
def pod() -> Iterator[str]:
    """Address of a pod that knows the metadata of two variants."""
    with http_server(_PodServer) as address:
        yield address


def test_apply_names_variants_of_other_tensors(
    verb: Cli, redis: servers.RedisServer, pod: str, tmp_path: Path
) -> None:
    async def register(registry: Registry) -> None:
        await registry.register_pod(PodInfo("pod-a", pod, "node"), lease_ttl_s=60.0)

    act(redis.url, "default", register)
    file = tmp_path / "digits.yaml"
    names = ("right", "unknown", "wrong")
    file.write_text(APPLICATION + "".join(VARIANT.replace("NAME", name) for name in names))
    applied = verb("apply", "-f", str(file))
    assert applied.status == 0
    unprofiled = "cannot be chosen: has no accuracy profile"
    assert applied.err.splitlines() == [
        f"default/digits: right {unprofiled}",
        f"default/digits: unknown {unprofiled}",  # no pod knows its metadata
        f"default/digits: wrong {unprofiled}; its input features is FP32 [-1, 8]; the "
        "application's is FP32 [-1, 64]; has no output 'label', which the application names; its "
        "outputs: class",
    ]


def test_apply_names_variants_that_a_changed_application_leaves_out(
    verb: Cli, redis: servers.RedisServer, tmp_path: Path
) -> None:
    file = tmp_path / "digits.yaml"
    file.write_text(APPLICATION + VARIANT.replace("NAME", "right"))
    assert verb("apply", "-f", str(file)).status == 0

    async def profile(registry: Registry) -> None:
        [model] = (await registry.cluster()).models.values()
        tensors = (InputTensor("features", "FP32", (-1, 64)),)
        matrix = ((9, 1), (1, 9))
        await registry.put_accuracy(
            AccuracyProfile(model.spec.key, ("even", "odd"), matrix, tensors, ("label",))
        )

    act(redis.url, "default", profile)
    assert verb("apply", "-f", str(file)).err == ""
    for old, new, said in (
        ("64", "32", "its input features is FP32 [-1, 64]; the application's is FP32 [-1, 32]"),
        ("even, odd", "no, yes", "its accuracy profile is of other classes"),
    ):
        file.write_text(APPLICATION.replace(old, new))
        applied = verb("apply", "-f", str(file))
        assert applied.err == f"default/digits: right cannot be chosen: {said}\n"
        listed = json.loads(verb("get", "applications", "--json").out)
        assert listed[0]["left_out"] == [f"right: {said}"]
