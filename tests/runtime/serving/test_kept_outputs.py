"""Runs of workflows on real pods whose steps pass large tensors: they stay at the pods."""

import os
import signal
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch

from runtime.serving import tensor_store
from tests import servers
from tests.runtime import archives
from tests.runtime.conftest import Cluster
from tests.runtime.http import metric
from tests.workflows.service.harness import HEAD, running_scheduler

pytestmark = pytest.mark.slow

VALUES = 32768
"""128 KiB."""
TOO_LARGE = 100_000
"""Bytes: a scheduler with this limit fails a step whose outputs it gets."""
KEPT = "pilotlight_kept_tensor_bytes"
WORKFLOWS = f"""
ONES = tensor([1.0] * {VALUES}, "FP32", ({VALUES // 4}, 4))

def shown(outputs):
    (rows,) = outputs.values()
    return [len(rows), rows[-1]]
"""


class Doubled(torch.nn.Module):
    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return features * 2


class Slow(torch.nn.Module):
    """A second of work."""

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        wide = features.sum() + torch.ones(1024, 1024) / 1024
        for _ in range(20):
            wide = wide @ wide / 1024
        return features + wide.sum() * 0


@dataclass
class Running:
    url: str
    client: httpx.Client

    def deploy(self, source: str) -> str:
        text = HEAD + WORKFLOWS + textwrap.dedent(source)
        response = self.client.put(f"{self.url}/v1/workflows/w", content=text)
        assert response.status_code == 200, response.text
        return f"{self.url}/v1/workflows/w"

    def run(self, workflow: str, **headers: str) -> httpx.Response:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.client.post(f"{workflow}:run", json={}, headers=named)


@contextmanager
def running(cluster: Cluster, folder: Path) -> Iterator[Running]:
    port = servers.free_port()
    with (
        httpx.Client(trust_env=False, timeout=120) as client,
        servers.gateway(
            folder / "gateway",
            redis_url=cluster.redis_url,
            pool=cluster.pool,
            workflows_url=f"http://127.0.0.1:{port}",
        ) as gateway,
        running_scheduler(
            folder / "scheduler",
            cluster.redis_url,
            cluster.pool,
            gateway.url,
            port=port,
            max_output_bytes=TOO_LARGE,
        ),
    ):
        yield Running(gateway.url, client)


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("programs")
    rows = torch.export.Dim("rows", max=65536)
    for name, module in (("double", Doubled()), ("slow", Slow())):
        file = folder / name / "model.pt2"
        archives.export(module, file, torch.ones(2, 4), dynamic=({0: rows},))
    return folder


def test_steps_pass_tensors_that_never_reach_the_scheduler(
    cluster: Cluster, programs: Path, tmp_path: Path
) -> None:
    cluster.declare("double", programs / "double")
    pods = [cluster.pod(name) for name in ("pod-a", "pod-b")]
    with running(cluster, tmp_path) as platform:
        workflow = platform.deploy("""
            @workflow
            async def chain():
                step = model("double")(features=ONES)
                for _ in range(3):
                    step = model("double")(features=step)
                return shown(await step)
        """)
        for scheduling in ("greedy", "speculative"):
            response = platform.run(workflow, x_pilotlight_scheduling=scheduling)
            assert response.status_code == 200, response.text
            assert response.json()["result"] == [VALUES // 4, [16.0] * 4]
            servers.wait_until(
                lambda: not any(metric(pod.url, KEPT) for pod in pods),
                what="tensors freed with the run",
            )


@pytest.fixture(scope="module")
def forkserver(s3: servers.S3Server) -> Iterator[servers.Forkserver]:
    """Of pods that do not remember which runs have ended: those that lose tensors of one that
    goes on keep its next ones."""
    program = ("tests.with_constants", f"{tensor_store.__name__}:MAX_ENDED=0", "runtime.forkserver")
    with servers.forkserver(s3.environment, program=program) as started:
        yield started


@pytest.mark.parametrize("use", ["await once", 'await model("double")(features=once)'])
@pytest.mark.parametrize("loss", ["dropped", "killed"])
def test_a_lost_tensor_is_made_again(
    cluster: Cluster,
    programs: Path,
    tmp_path: Path,
    forkserver: servers.Forkserver,
    use: str,
    loss: str,
) -> None:
    for name in ("double", "slow"):
        cluster.declare(name, programs / name)
    with (
        cluster.pod_context("pod-a") as first,
        cluster.pod_context("pod-b") as second,
        running(cluster, tmp_path) as platform,
    ):
        pods = {"pod-a": first, "pod-b": second}
        workflow = platform.deploy(f"""
            @workflow
            async def late():
                once = model("double")(features=ONES)
                await model("slow")(features=model("double")(features=once))
                return shown({use})
        """)
        begun = platform.run(workflow, prefer="respond-async")
        run = platform.url + begun.headers["location"]

        def first_step() -> dict[str, Any]:
            steps = platform.client.get(run).json().get("steps") or [{}]
            return dict(steps[0])

        servers.wait_until(lambda: first_step().get("state") == "done", what="first step done")
        keeper = pods[first_step()["pod"]]
        if loss == "dropped":
            path = f"/v2/tensors/default/{begun.json()['id']}"
            assert platform.client.delete(keeper.url + path).json()["dropped"] >= 1
        else:
            os.kill(keeper.pid, signal.SIGKILL)
            name = first_step()["pod"]
            forkserver.events.append(forkserver.wait_event(exited=name))
        assert platform.client.get(run).json()["status"] == "running"
        servers.wait_until(
            lambda: platform.client.get(run).json()["status"] != "running",
            what="run ended",
            timeout_s=60,
        )
        ended = platform.client.get(run).json()
        assert ended["status"] == "succeeded", ended
        assert ended["result"] == [VALUES // 4, [2.0 * (1 + ("model" in use))] * 4]
        assert sum(step.get("lost_tensors", 0) for step in ended["steps"]) >= 1
