"""Two pods on one device; a script stands in for NVIDIA's command, as it is documented."""

import os
from pathlib import Path

import pytest

from benchmarks.gpu.mps import mps_clients, mps_daemon
from benchmarks.gpu.sharing import (
    ALONE,
    SHARES,
    TURNS,
    Sharing,
    SharingPlan,
    WayBurst,
    measure_sharing,
    pod_options,
)
from benchmarks.gpu.sharing_marks import sharing_marks, sharing_summary
from benchmarks.gpu.sharing_pod import PodBurst
from pilotlight.errors import StartFailed
from pilotlight.platform.accelerators import MPS_COMMAND, is_mps_ready

_SCRIPT = """#!/bin/sh
pid="$CUDA_MPS_PIPE_DIRECTORY/daemon.pid"
if [ "$1" = -f ]; then
    echo $$ > "$pid"
    exec sleep 600
fi
read -r request && kill -0 "$(cat "$pid")" || exit 1
case "$request" in
    get_server_list) echo 70 ;;
    "get_client_list 70") printf '71\\n72\\n' ;;
esac
"""


@pytest.fixture
def mps_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = tmp_path / MPS_COMMAND
    command.write_text(_SCRIPT)
    command.chmod(0o700)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")


@pytest.mark.usefixtures("mps_command")
async def test_a_daemon_runs_for_the_time_of_a_measurement() -> None:
    async with mps_daemon() as env:
        assert await is_mps_ready(env)
        assert await mps_clients(env) == 2
    assert not await is_mps_ready(env)


async def test_a_daemon_that_ends_at_once_cannot_be_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / MPS_COMMAND).write_text("#!/bin/sh\necho no driver; exit 1\n")
    (tmp_path / MPS_COMMAND).chmod(0o700)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(StartFailed, match="no driver"):
        async with mps_daemon():
            pass


def test_without_mps_shares_are_named_as_not_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    measured = measure_sharing("cuda", SharingPlan(tmp_path, ways=(SHARES,)))
    assert MPS_COMMAND in measured.problems[SHARES]
    assert f"Not measured: {SHARES}: the command {MPS_COMMAND}" in sharing_summary(measured)
    for mark in sharing_marks(measured):
        assert not mark.is_reached
        assert MPS_COMMAND in mark.seen


def test_what_is_not_done_in_time_is_named(tmp_path: Path) -> None:
    measured = measure_sharing("cpu", SharingPlan(tmp_path, limit_s=0.01))
    assert measured.bursts == []
    assert set(measured.problems) == {ALONE, TURNS, SHARES}
    assert "not done within the 0.01 s" in measured.problems[ALONE]


def test_shares_are_those_of_mps_on_a_gpu_and_cores_on_a_cpu(tmp_path: Path) -> None:
    plan = SharingPlan(tmp_path)
    on_gpu, on_cpu = (pod_options(SHARES, device, plan) for device in ("cuda", "cpu"))
    assert [(pod.share_pct, pod.cores) for pod in on_gpu] == [(50, ""), (50, "")]
    assert {int(pod.cores) for pod in on_cpu} <= os.sched_getaffinity(0)
    assert [(pod.share_pct, pod.cores) for pod in pod_options(TURNS, "cuda", plan)] == [(0, "")] * 2
    assert len(pod_options(ALONE, "cuda", plan)) == 1


def burst(way: str, *pods: tuple[int, float]) -> WayBurst:
    """Pods by their inferences in a second, and their p99 in seconds."""
    return WayBurst(way, [PodBurst(count, 1.0, 0.001, 0.002, p99_s) for count, p99_s in pods])


def test_shares_are_held_against_time_sharing() -> None:
    turns = burst(TURNS, (100, 0.02), (100, 0.03))
    faster = burst(SHARES, (150, 0.025), (120, 0.01))
    measured = Sharing([turns, faster], {TURNS: "132 + 132", SHARES: "66 + 66"}, {})
    rate, p99 = sharing_marks(measured)
    assert (rate.is_reached, rate.seen) == (True, "270 against 200")
    assert (p99.is_reached, p99.seen) == (True, "25.00 against 30.00 ms")
    slower = burst(SHARES, (90, 0.04), (90, 0.01))
    marks = sharing_marks(Sharing([turns, slower], measured.seen, {}))
    assert [mark.is_reached for mark in marks] == [False, False]
    assert f"| {SHARES} | 270 (270 to 270) | 1.00 | 25.00 | 66 + 66 |" in sharing_summary(measured)


@pytest.mark.slow
def test_a_pod_that_fails_is_named(tmp_path: Path) -> None:
    measured = measure_sharing("cpu", SharingPlan(tmp_path / "none", ways=(ALONE,)))
    assert "a pod ended with status 1" in measured.problems[ALONE]


@pytest.mark.slow
def test_pods_infer_at_the_same_time(tmp_path: Path) -> None:
    from pilotlight.sample_models.make_model import make_model  # imports torch

    folder = make_model("tiny-bert", tmp_path / "tiny-bert")
    plan = SharingPlan(folder, clients=2, rounds=1, bursts=1, seconds=0.5, ways=(TURNS, SHARES))
    measured = measure_sharing("cpu", plan)
    assert measured.problems == {}
    assert [len(each.pods) for each in measured.bursts] == [2, 2]
    for each in measured.bursts:
        assert all(pod.inferences and 0 < pod.p50_s <= pod.p99_s for pod in each.pods)
    assert measured.seen[SHARES] == "1 + 1"
