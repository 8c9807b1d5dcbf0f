"""Request threads: the pod is not alive once every one of them hangs."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from runtime.request_threads import RequestThreads
from tests.servers import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

TIMEOUT_S = 0.2


@pytest.fixture
def release() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


def test_they_are_stuck_while_each_is_in_a_call_that_hangs(release: threading.Event) -> None:
    threads = RequestThreads(2, TIMEOUT_S)
    first = threads.submit(release.wait)
    assert threads.submit(int, "3").result() == 3
    second = threads.submit(release.wait)
    assert not threads.are_stuck  # both are busy, for less than the time limit
    wait_until(lambda: threads.are_stuck, what="both calls hang")
    release.set()
    assert first.result()
    assert second.result()
    assert not threads.are_stuck
    threads.shutdown()


def test_one_thread_that_works_keeps_the_pod_alive(release: threading.Event) -> None:
    threads = RequestThreads(2, TIMEOUT_S)
    threads.submit(release.wait)
    assert not release.wait(2 * TIMEOUT_S)
    assert not threads.are_stuck
    release.set()
    threads.shutdown()


def test_a_call_that_raises_ends(release: threading.Event) -> None:
    threads = RequestThreads(1, 0.0)
    with pytest.raises(ValueError, match="invalid literal"):
        threads.submit(int, "x").result()
    assert not threads.are_stuck
    threads.shutdown()
