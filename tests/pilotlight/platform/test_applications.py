"""Applications as a user has them: profiled and trained on a platform of real pods, then asked."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from torch import nn

from tests import servers
from tests.pilotlight.conftest import run_cli
from tests.pilotlight.platform.running import RunningPlatform, start_platform

pytestmark = pytest.mark.slow

APPLICATION = """
apiVersion: pilotlight.io/v1alpha1
kind: InferenceApplication
metadata: {{name: parity}}
spec:
  classes: [even, odd]
  inputs: [{{name: features, datatype: FP32, shape: [-1, 3]}}]
  deadline: 10s
  {look}
"""
VARIANT = """
---
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata:
  name: parity-{name}
  annotations: {{pilotlight.io/application: parity, pilotlight.io/preload: eager}}
spec: {{predictor: {{model: {{modelFormat: {{name: pytorch}}, storageUri: "file://{path}"}}}}}}
"""
NAMES = ("fast", "slow")


class Variant(nn.Module):
    """The label is the sign of one column; `layers` only take time."""

    def __init__(self, column: int, layers: int) -> None:
        super().__init__()
        self.select: torch.Tensor
        self.weight: torch.Tensor
        select = torch.zeros(3, 2)
        select[column] = torch.tensor([-1.0, 1.0])
        self.register_buffer("select", select)
        self.register_buffer("weight", torch.eye(1536) * 0.5)
        self._layers = layers

    def forward(self, features: torch.Tensor) -> dict[str, torch.Tensor]:
        scores = features @ self.select
        idle = scores.repeat(1, 768)
        for _ in range(self._layers):
            idle = torch.tanh(idle @ self.weight)
        return {"label": (scores + 1e-9 * idle.mean(dim=-1, keepdim=True)).argmax(dim=-1)}


def _export(folder: Path, column: int, layers: int) -> None:
    folder.mkdir(parents=True)
    program = torch.export.export(
        Variant(column, layers).eval(),
        (torch.zeros(2, 3),),
        dynamic_shapes=({0: torch.export.Dim("rows", min=1, max=64)},),
    )
    torch.export.save(program, folder / "model.pt2")


def _write_examples(path: Path, rng: np.random.Generator) -> None:
    """Columns that agree with the label in 70, 90 and all cases."""
    labels = np.arange(120) % 2
    signs = 2.0 * labels - 1.0
    columns = [np.where(rng.random(120) < share, signs, -signs) for share in (0.7, 0.9, 1.0)]
    features = np.stack(columns, axis=1) * [1.0, 1.0, 5.0]
    np.savez(path, features=features.astype(np.float32), labels=labels)


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningPlatform]:
    folder = tmp_path_factory.mktemp("applications")
    for column, (name, layers) in enumerate(zip(NAMES, (1, 40), strict=True)):
        _export(folder / name, column, layers)
    _write_examples(folder / "examples.npz", np.random.default_rng(1))
    running = start_platform(folder / "home", "--no-s3", "--pods", "1")
    try:
        yield running
    finally:
        assert running.cli("down").status == 0


def _apply(platform: RunningPlatform, look: str = "") -> None:
    folder = platform.home.parent
    variants = [VARIANT.format(name=name, path=folder / name) for name in NAMES]
    file = folder / "parity.yaml"
    file.write_text(APPLICATION.format(look=look) + "".join(variants))
    applied = platform.cli("apply", "-f", str(file))
    assert applied.status == 0, applied.err


def _predict(platform: RunningPlatform, row: list[float], *more: str) -> dict[str, Any]:
    tensor = {"name": "features", "datatype": "FP32", "shape": [1, 3], "data": row}
    body = json.dumps({"inputs": [tensor]})
    found = platform.cli("predict", "parity", "--v2", "--data", body, "--json", *more)
    assert found.status == 0, found.err
    document: dict[str, Any] = found.document
    return document


def _variant(answer: dict[str, Any]) -> str:
    return str(answer["headers"]["x-pilotlight-variant"])


def test_a_user_profiles_trains_asks_and_measures_an_application(platform: RunningPlatform) -> None:
    folder = platform.home.parent
    examples = str(folder / "examples.npz")
    _apply(platform)
    before = platform.cli("predict", "parity", "--v2", "--data", '{"inputs": []}')
    assert before.status != 0
    assert "has no accuracy profile" in before.err + before.out
    profiled = platform.cli(
        "profile",
        "parity",
        "--examples",
        examples,
        "--limit",
        "60",
        "--max-batch-size",
        "2",
        "--repeats",
        "1",
        "--json",
    )
    assert profiled.status == 0, profiled.err
    fast, slow = profiled.document
    assert slow["accuracy"] > fast["accuracy"] > 0.5
    assert [each["model"] for each in profiled.document] == [f"default/parity-{n}" for n in NAMES]
    latency_s = [each["batches"][0]["points"][0]["latency_s"] for each in profiled.document]
    assert latency_s[1] > latency_s[0] > 0
    [listed] = platform.get("applications")
    assert (listed["ready"], listed["left_out"]) == (True, [])

    row = [1.0, 1.0, 5.0]
    loose = _predict(platform, row)
    tight = _predict(platform, row, "--deadline-ms", "1")
    assert (_variant(loose), _variant(tight)) == ("parity-slow", "parity-fast")
    explained = platform.cli("explain", loose["headers"]["x-request-id"])
    assert explained.status == 0, explained.err
    for text in ("parity-fast", "parity-slow", "expected_utility"):
        assert text in explained.out

    trained = platform.cli(
        "sneakpeek",
        "train",
        "parity",
        "--examples",
        examples,
        "--out",
        str(folder / "peek"),
        "--json",
    )
    assert trained.status == 0, trained.err
    assert trained.document["accuracy"] > slow["accuracy"]
    _apply(platform, f'sneakPeek: {{uri: "file://{folder}/peek"}}')
    servers.wait_until(
        lambda: _variant(_predict(platform, row)) == "short-circuit", what="a short circuit"
    )

    runs = []
    for policy in ("lo-edf", "sneakpeek"):
        runs.append(f"{policy}={folder / policy}.parquet")
        ran = platform.cli(
            "load",
            "run",
            "--trace",
            "poisson:rate=8,duration=3s|model=parity",
            "--examples",
            f"parity={examples}",
            "--policy",
            policy,
            "-o",
            str(folder / f"{policy}.parquet"),
        )
        assert ran.status == 0, ran.err
        rows = pq.read_table(folder / f"{policy}.parquet").to_pylist()
        assert {each["status"] for each in rows} == {200}
        useful = [each for each in rows if each["utility"] > 0]
        assert useful  # a right answer may be too late to be of use, a wrong one never is
        assert all(each["prediction"] == each["label"] for each in useful)
    reported = run_cli("report", *runs, "-o", str(folder / "report"))
    assert reported.status == 0, reported.err
    assert (folder / "report" / "utility.png").is_file()
    assert "Utility of applications" in (folder / "report" / "index.html").read_text()
