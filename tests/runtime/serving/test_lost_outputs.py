"""Outputs that pods have lost: pods say which, and only the steps that made those run again."""

import os
import signal
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from tests import servers
from tests.runtime import archives
from tests.runtime.conftest import Cluster
from tests.runtime.http import get
from tests.runtime.serving.test_kept_outputs import VALUES, Doubled, running
from tests.runtime.serving.test_step_tensors import features, infer, reference_of


class Sum(torch.nn.Module):
    def forward(self, one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        return one + other


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("programs")
    rows, example = torch.export.Dim("rows", max=65536), torch.ones(2, 4)
    archives.export(Doubled(), folder / "double" / "model.pt2", example, dynamic=({0: rows},))
    both = ({0: rows}, {0: rows})
    archives.export(Sum(), folder / "sum" / "model.pt2", example, example, dynamic=both)
    return folder


@contextmanager
def stopped(context: AbstractContextManager[servers.Pod]) -> Iterator[servers.Pod]:
    """A pod that answers nothing until it gets SIGCONT."""
    with context as pod:
        os.kill(pod.pid, signal.SIGSTOP)
        try:
            yield pod
        finally:
            os.kill(pod.pid, signal.SIGCONT)


@pytest.mark.parametrize("loss", ["dropped", pytest.param("killed", marks=pytest.mark.slow)])
def test_only_the_lost_one_of_two_inputs_is_made_again(
    cluster: Cluster, programs: Path, tmp_path: Path, forkserver: servers.Forkserver, loss: str
) -> None:
    for name in ("double", "sum"):
        cluster.declare(name, programs / name)
    with (
        cluster.pod_context("pod-a") as first,
        cluster.pod_context("pod-b") as second,
        stopped(cluster.pod_context("pod-c", lease_ttl=600.0)) as third,
        running(cluster, tmp_path) as platform,
    ):
        pods = {"pod-a": first, "pod-b": second}
        workflow = platform.deploy("""
            @workflow(deadline="600s")
            async def late():
                one, other = model("double")(features=ONES), model("double")(features=ONES)
                await model("double")(features=ONES)
                return shown(await model("sum")(one=one, other=other))
        """)
        begun = platform.run(
            workflow, prefer="respond-async", x_pilotlight_scheduling="round-robin"
        )
        run = platform.url + begun.headers["location"]

        def steps() -> list[dict[str, Any]]:
            return list(platform.client.get(run).json().get("steps", []))

        servers.wait_until(
            lambda: [each["state"] for each in steps()[:2]] == ["done"] * 2, what="inputs made"
        )
        keepers = [each["pod"] for each in steps()[:2]]
        assert set(keepers) == set(pods)
        if loss == "dropped":
            path = f"/v2/tensors/default/{begun.json()['id']}"
            assert platform.client.delete(pods[keepers[0]].url + path).json()["dropped"] == 1
        else:
            os.kill(pods[keepers[0]].pid, signal.SIGKILL)
            forkserver.events.append(forkserver.wait_event(exited=keepers[0]))
        os.kill(third.pid, signal.SIGCONT)
        servers.wait_until(
            lambda: platform.client.get(run).json()["status"] != "running", what="run ended"
        )
        ended = platform.client.get(run).json()
        assert ended.get("result") == [VALUES // 4, [4.0] * 4], ended
        assert [each.get("attempts", 1) for each in ended["steps"][:2]] == [2, 1]
        assert ended["steps"][3]["lost_tensors"] == 1


def test_a_pod_says_which_tensors_of_a_run_it_keeps(cluster: Cluster, programs: Path) -> None:
    cluster.declare("double", programs / "double")
    pod = cluster.pod("pod-a")
    names = [reference_of(infer(pod, features()))["parameters"]["kept_tensor"] for _ in range(2)]
    asked = "&".join(f"identity={each}" for each in (*names, "0" * 32))
    for path, kept in (("default/run-1", names), ("default/run-2", []), ("other/run-1", [])):
        assert get(f"{pod.url}/v2/tensors/{path}?{asked}").json() == {"kept": kept}
    assert get(f"{pod.url}/v2/tensors/default/run-1").json() == {"kept": []}
