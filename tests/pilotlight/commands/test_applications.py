"""Applications at the command line: apply, get, train the look, delete."""

import json
from pathlib import Path

import numpy as np

from registry.inference_service.reader import read_documents
from tests import servers
from tests.pilotlight.conftest import Cli
from variants.application import read_applications
from variants.look_files import read_sneakpeek

SAMPLES = servers.REPOSITORY / "manifests/samples/applications"
APPLICATION = """
apiVersion: pilotlight.io/v1alpha1
kind: InferenceApplication
metadata: {name: parity}
spec: {classes: [even, odd], deadline: 150ms}
---
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata: {name: parity-small, annotations: {pilotlight.io/application: parity}}
spec: {predictor: {model: {modelFormat: {name: pytorch}, storageUri: "file:///m"}}}
"""


def test_an_application_is_applied_listed_trained_for_and_deleted(
    verb: Cli, tmp_path: Path
) -> None:
    file = tmp_path / "parity.yaml"
    file.write_text(APPLICATION)
    applied = verb("apply", "-f", str(file))
    assert "inferenceapplication.pilotlight.io/parity created" in applied.out
    listed = json.loads(verb("get", "applications", "--json").out)
    assert [each["name"] for each in listed] == ["parity"]
    assert listed[0]["ready"] is False
    assert listed[0]["left_out"] == ["parity-small: has no accuracy profile"]
    rng = np.random.default_rng(1)
    labels = rng.integers(0, 2, 80)
    features = (rng.standard_normal((80, 3)) + 4 * labels[:, None]).astype(np.float32)
    np.savez(tmp_path / "a.npz", features=features, labels=labels)
    out = tmp_path / "peek"
    trained = verb(
        "sneakpeek", "train", "parity", "--examples", str(tmp_path / "a.npz"), "--out", str(out)
    )
    assert trained.status == 0, trained.err
    assert read_sneakpeek(out).classes == ("even", "odd")
    features[2, 1] = np.nan
    np.savez(tmp_path / "a.npz", features=features, labels=labels)
    bad = verb("sneakpeek", "train", "parity", "--examples", str(tmp_path / "a.npz"))
    assert bad.status == 2
    assert "features must be finite in row 2" in bad.err
    deleted = verb("delete", "-f", str(file))
    assert 'inferenceapplication.pilotlight.io "parity" deleted' in deleted.out


def test_the_samples_are_valid() -> None:
    sources = [(file.name, file.read_text()) for file in sorted(SAMPLES.glob("*.yaml"))]
    applications = read_applications(sources)
    assert [each.name.name for each in applications] == ["digits", "tumours", "wine"]
    assert len(read_documents(sources)) == 9
