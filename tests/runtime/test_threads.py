"""Calls in threads: results, errors, cancellation, and when all hang."""

import asyncio
import gc
import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from runtime.threads import RequestThreads, in_thread
from tests.servers import wait_until


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as pool:
        yield pool


async def test_gives_the_result(threads: ThreadPoolExecutor) -> None:
    name = await in_thread(threads, lambda: threading.current_thread().name)
    assert name != threading.current_thread().name
    assert await in_thread(threads, int, "12") == 12


def test_raises_what_a_future_does_not_accept_as_a_runtime_error(
    threads: ThreadPoolExecutor,
) -> None:
    def stop() -> None:
        raise StopIteration("no more")

    with pytest.raises(RuntimeError, match="StopIteration: no more") as raised:
        asyncio.run(in_thread(threads, stop))
    assert isinstance(raised.value.__cause__, StopIteration)


async def test_a_call_that_is_cancelled_before_it_begins_never_runs(
    threads: ThreadPoolExecutor,
) -> None:
    open_, ran = threading.Event(), threading.Event()

    first = asyncio.ensure_future(in_thread(threads, open_.wait, 60))
    second = asyncio.ensure_future(in_thread(threads, ran.set))
    await asyncio.sleep(0)
    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second
    open_.set()
    assert await first
    assert await in_thread(threads, int, 3) == 3  # after the second one in the queue
    assert not ran.is_set()


async def test_the_end_of_a_call_whose_caller_has_gone_is_harmless(
    threads: ThreadPoolExecutor,
) -> None:
    begun, open_ = threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        assert open_.wait(60)
        raise ValueError("nobody hears it")

    call = asyncio.ensure_future(in_thread(threads, work))
    await asyncio.to_thread(begun.wait, 60)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    open_.set()
    assert await in_thread(threads, int, 3) == 3


def test_an_error_keeps_nothing_once_it_is_dropped(threads: ThreadPoolExecutor) -> None:
    """Without a collection of garbage: a failed call may hold large tensors."""
    kept: list[weakref.ref[Any]] = []

    class Tensor:
        pass

    def fail() -> None:
        tensor = Tensor()
        kept.append(weakref.ref(tensor))
        raise ValueError("no")

    async def run() -> None:
        try:
            await in_thread(threads, fail)
        except ValueError:
            assert kept[0]() is not None
        await in_thread(threads, int, 3)  # the thread has dropped its last call

    gc.disable()
    try:
        asyncio.run(run())
        assert kept[0]() is None
    finally:
        gc.enable()


def test_a_queued_call_of_threads_that_shut_down_is_cancelled() -> None:
    open_ = threading.Event()

    async def run(threads: ThreadPoolExecutor) -> None:
        first = asyncio.ensure_future(in_thread(threads, open_.wait, 60))
        queued = asyncio.ensure_future(in_thread(threads, int, 3))
        await asyncio.sleep(0)
        threads.shutdown(wait=False, cancel_futures=True)
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(queued, 60)
        open_.set()
        assert await first

    asyncio.run(run(ThreadPoolExecutor(1)))


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
