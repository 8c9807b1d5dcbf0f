"""CPU time by the kind of thread, per request."""

import threading

import pytest

from benchmarks.pod_cpu import LOOP, PodCpu, _spent, summary
from benchmarks.pod_threads import _cpu_s


def test_threads_of_one_kind_count_together() -> None:
    open_ = threading.Event()
    threads = [threading.Thread(target=open_.wait, name=f"request_{n}") for n in range(2)]
    for thread in threads:
        thread.start()
    found = _cpu_s()
    open_.set()
    for thread in threads:
        thread.join()
    assert {LOOP, "request", "other"} <= set(found)
    assert found[LOOP] > 0
    assert "request_0" not in found


def test_threads_of_libraries_are_others() -> None:
    spent = _spent({LOOP: 1.0, "sandbox": 1.0}, {LOOP: 1.5, "sandbox": 1.25, "reader": 0.5})
    assert spent == pytest.approx({LOOP: 0.5, "request": 0, "device": 0, "other": 0.75})


def test_the_table_has_microseconds_per_request() -> None:
    burst = PodCpu("v1", 16, 1000, 2, {LOOP: 1.0, "request": 0.5, "device": 0.25, "other": 0.0})
    table = summary([burst])
    assert "| v1 | 16 | 1750 (1750 to 1750) | 1000 | 500 | 250 | 0 |" in table
    assert "2 errors in 1000." in table
