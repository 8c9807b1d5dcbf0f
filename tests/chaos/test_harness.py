"""What the campaign counts and watches by: executions, metrics, trends and roles of processes."""

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests import servers
from tests.chaos.executions import executed_twice, read_ledger
from tests.chaos.processes import MARK, ProcessTable
from tests.chaos.scrape import MetricMissing, present_metric
from tests.chaos.trend import HOUR_S, trend, without

TWICE = "begin 1.0 7 r\nend 2.0 7 r\nbegin 5.0 8 r\nend 6.0 8 r\n"


def twice(tmp_path: Path, ledger: str, pods_gone_s: list[float]) -> list[str]:
    path = tmp_path / "ledger"
    path.write_text(ledger)
    return executed_twice(read_ledger(path), [(each - 0.2, each) for each in pods_gone_s])


def test_two_living_pods_are_one_too_many(tmp_path: Path) -> None:
    assert len(twice(tmp_path, TWICE, [])) == 1
    assert len(twice(tmp_path, TWICE, [9.0])) == 1


def test_a_pod_that_was_gone_before_the_second_does_not_count(tmp_path: Path) -> None:
    assert twice(tmp_path, TWICE, [4.0]) == []


def test_the_end_of_a_pod_before_or_after_both_does_not_excuse_it(tmp_path: Path) -> None:
    assert len(twice(tmp_path, TWICE, [0.5, 9.0])) == 1


def test_an_inference_without_outputs_does_not_count(tmp_path: Path) -> None:
    assert twice(tmp_path, TWICE.replace("end 2.0 7 r\n", ""), []) == []


def test_the_same_pod_twice_is_one_too_many(tmp_path: Path) -> None:
    assert len(twice(tmp_path, TWICE.replace(" 8 ", " 7 "), [])) == 1


def test_the_same_pod_may_infer_again_once_the_entry_pod_is_gone(tmp_path: Path) -> None:
    assert twice(tmp_path, TWICE.replace(" 8 ", " 7 "), [4.0]) == []


def test_a_value_is_read() -> None:
    assert present_metric('a_b{c="d"} 2.0\na_b{c="e"} 1.0\n', "a_b") == 3.0


def test_a_metric_that_was_renamed_is_no_zero() -> None:
    with pytest.raises(MetricMissing):
        present_metric("a_b_total 0.0\n", "a_b")


TIMES_S = [float(each) for each in range(0, 600, 5)]


def noise(seed: int) -> random.Random:
    return random.Random(seed)


def test_a_growing_series_grows() -> None:
    rng = noise(1)
    found = trend(TIMES_S, [100 + each / HOUR_S * 60 + rng.gauss(0, 1) for each in TIMES_S])
    assert found.low < 60 < found.high
    assert found.grows(0.05, 1.0)


def test_a_flat_series_with_noise_does_not() -> None:
    rng = noise(3)
    found = trend(TIMES_S, [100 + rng.gauss(0, 5) for _ in TIMES_S])
    assert found.low < 0 < found.high
    assert not found.grows(0.05, 1.0)


def test_slow_waves_are_not_mistaken_for_growth() -> None:
    values = [100.0 + (each % 200 > 100) * 20 for each in TIMES_S]
    assert not trend(TIMES_S, values).grows(0.05, 1.0)


def test_what_another_series_explains_is_no_growth() -> None:
    rng = noise(5)
    cause = [200 * (1 - 2.0 ** (-each / 150)) for each in TIMES_S]
    values = [7_000 + 8 * each + rng.gauss(0, 5) for each in cause]
    assert trend(TIMES_S, values).grows(0.05, 1.0)
    assert not trend(without(TIMES_S, cause), without(values, cause)).grows(0.0, 60.0)


def test_growth_beside_what_another_series_explains_is_seen() -> None:
    rng = noise(5)
    cause = [200 * (1 - 2.0 ** (-each / 150)) for each in TIMES_S]
    values = [
        7_000 + 8 * each + time_s / HOUR_S * 600 + rng.gauss(0, 5)
        for each, time_s in zip(cause, TIMES_S, strict=True)
    ]
    found = trend(without(TIMES_S, cause), without(values, cause))
    assert found.grows(0.0, 300.0)


_FAMILY = """
import os, time
for _ in range(2):
    if os.fork():
        break
os.write(1, b"%d\\n" % os.getpid())
time.sleep(60)
"""
"""A process, its child and its grandchild, with the command line of the forkserver."""


def test_roles_outlive_the_parent(tmp_path: Path) -> None:
    ledger = str(tmp_path / "ledger")
    forkserver = subprocess.Popen(
        [sys.executable, "-c", _FAMILY, "runtime.forkserver"],
        env={**os.environ, MARK: ledger},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert forkserver.stdout is not None
    with forkserver, forkserver.stdout:
        pids = {int(forkserver.stdout.readline()) for _ in range(3)}
        table = ProcessTable(ledger)
        try:
            before = {each.pid: each.role for each in table.read()}
            assert before.keys() == pids
            assert before[forkserver.pid] == "forkserver"
            assert sorted(before.values()) == ["forkserver", "other", "pod"]
            (pod,) = (pid for pid, role in before.items() if role == "pod")
            (child,) = (pid for pid, role in before.items() if role == "other")
            os.kill(pod, signal.SIGKILL)
            servers.wait_until(lambda: not servers.is_alive(pod), timeout_s=30, what="pod ended")
            after = {each.pid: each.role for each in table.read()}
            assert after == {forkserver.pid: "forkserver", child: "other"}
        finally:
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
            forkserver.wait()
