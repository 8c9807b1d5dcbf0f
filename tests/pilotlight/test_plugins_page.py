"""docs/plugins.md: its package, installed in a fresh environment, works as the page says."""

import json
import re
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path
from typing import Any, Final

import pytest

from tests.servers import REPOSITORY

_SIMULATED: Final = (
    "simulate", "--cluster", "manifests/simulator/eight-pods.yaml",
    "--trace", "poisson:rate=20,duration=1m,names=t5-00/t5-01/t5-02", "--json",
)  # fmt: skip
_ROUTED: Final = """
from gateway.http.headers import read_headers
from gateway.routing.decision import SendTo
from gateway.routing.route_request import IncomingRequest, route_request
from registry.domain.cluster import ClusterState
from registry.domain.records import decode, encode_spec
from registry.domain.model import ModelRecord, ModelSpec
from registry.domain.pod import PodInfo, PodPhase
from registry.domain.pod_state import PodState
from registry.inference_service.reader import read_object

spec = read_object({
    "apiVersion": "serving.kserve.io/v1beta1", "kind": "InferenceService",
    "metadata": {"name": "a", "annotations": {"pilotlight.io/policy": "fewest-inferences"}},
    "spec": {"predictor": {"model": {
        "modelFormat": {"name": "huggingface"}, "storageUri": "s3://models/a",
    }}},
})
spec = decode(ModelSpec, encode_spec(spec))  # as the gateway reads it from the registry
state = ClusterState()
for name in ("p", "q"):
    state.pods[name] = PodState(PodInfo(name, name, name, slots=1, memory_bytes=10**9))
    state.pods[name].set_phase(PodPhase.READY)
state.pods["p"].set_counts(1, 1)
request = IncomingRequest("r", spec.name, 0.0, 0.5, 1)
found = route_request(request, {spec.name: ModelRecord(spec)}, state, now_s=0.0)
assert isinstance(found.decision, SendTo), found
header = read_headers([(b"x-pilotlight-policy", b"fewest-inferences")]).policy
print(found.policy, found.decision.predict, header)
"""

_PLACED: Final = """
from autoscaler.placement import planner_of
from autoscaler.placement.problem import (
    AcceleratorView, BatchPoint, ModelProfile, PlanParams, Profiles, Workload,
)

batches = (BatchPoint(1, 0.01, 100, 10, 10, 10, 10),)
profiles = Profiles(tuple(ModelProfile(name, "cpu", batches) for name in "ab"))
loads = [Workload(name, 5, 1) for name in "ab"]
cpus = [AcceleratorView(name, "cpu") for name in ("cpu-0", "cpu-1")]
plan = planner_of("one-each")(loads, cpus, profiles, (), PlanParams())
print(plan.planner, len({each.accelerator for each in plan.replicas}))
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with this one's packages and, installed there alone, the page's package."""
    folder = tmp_path_factory.mktemp("plugins")
    source = folder / "mine"
    source.mkdir()
    project, module = _page()
    (source / "pyproject.toml").write_text(project)
    (source / "mine.py").write_text(module)
    venv.create(folder / "env", symlinks=True)
    [packages] = (folder / "env").glob("lib/python*/site-packages")
    (packages / "tested.pth").write_text(
        f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n"
    )
    subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            "--disable-pip-version-check",
            "install",
            "--quiet",
            "--no-index",
            "--no-deps",
            "--no-build-isolation",
            "--target",
            packages,
            source,
        ],
        check=True,
    )
    return folder / "env" / "bin" / "python"


def _page() -> tuple[str, str]:
    """The page's pyproject.toml, with the entry points of all sections, and their code."""
    text = (REPOSITORY / "docs" / "plugins.md").read_text()
    blocks = [
        re.sub("^    ", "", found, flags=re.MULTILINE)
        for found in re.findall(r"(?:^    .*\n|^\n(?=    ))+", text, re.MULTILINE)
    ]
    project = [each for each in blocks if re.search(r"^\[", each, re.MULTILINE)]
    starts = re.compile("^(from .* import|import|class) ", re.MULTILINE)
    module = [each for each in blocks if starts.search(each)]
    assert len(project) == len(module) == 5
    return "\n".join(project), "\n".join(module)


def _run(python: Path, *arguments: str) -> str:
    ran = subprocess.run(
        [python, "-P", *arguments], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def _pilotlight(python: Path, *arguments: str) -> Any:
    return json.loads(_run(python, "-m", "pilotlight", *arguments))


@pytest.mark.slow
def test_a_routing_policy_runs_in_the_simulator(python: Path) -> None:
    runs = _pilotlight(python, *_SIMULATED, "--policy", "auto,fewest-inferences")["runs"]
    auto, mine = runs
    assert (auto["policy"], mine["policy"]) == ("auto", "fewest-inferences")
    assert mine["ok"] == mine["requests"] == auto["requests"] > 1000
    assert mine["loads"] != auto["loads"]


@pytest.mark.slow
def test_a_gateway_routes_by_the_policy_that_an_annotation_names(python: Path) -> None:
    assert _run(python, "-c", _ROUTED).split() == ["fewest-inferences", "q", "fewest-inferences"]


@pytest.mark.slow
def test_a_loading_policy_demotes_what_is_idle(python: Path) -> None:
    arguments = (*_SIMULATED, "--loading", "none,one-minute", "--loading-value", "0.01")
    none, mine = _pilotlight(python, *arguments)["runs"]
    assert none["actions"] == {}
    assert mine["actions"]["demote"]["idle"] > 0


@pytest.mark.slow
def test_a_planner_plans(python: Path) -> None:
    assert _run(python, "-c", _PLACED).split() == ["one-each", "2"]


@pytest.mark.slow
def test_an_experiment_runs(python: Path) -> None:
    assert "SQUARE" in _run(python, "-m", "pilotlight", "experiment", "squares")
