"""The device worker: order, deadlines, errors, cancellation, limits."""

import asyncio
import contextlib
import gc
import json
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
import tokenizers

from runtime.device.worker import DeviceWorker
from runtime.errors import DeadlinePassed, QueueFull
from runtime.threads import in_thread


class Gate:
    """A job that runs until it is released."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.open = threading.Event()

    def __call__(self) -> None:
        self.entered.set()
        assert self.open.wait(60)


async def entered(gate: Gate) -> None:
    assert await asyncio.to_thread(gate.entered.wait, 60)


async def test_runs_one_at_a_time_nearest_deadline_first(device: DeviceWorker) -> None:
    order: list[str] = []

    gate, now_s = Gate(), time.monotonic()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(device.run(gate))
        await entered(gate)
        for name, deadline_s in (("none", None), ("late", now_s + 50), ("soon", now_s + 40)):
            tasks.create_task(device.run(partial(order.append, name), deadline_s=deadline_s))
            await asyncio.sleep(0)
        gate.open.set()
    assert order == ["soon", "late", "none"]


async def test_deadline_passed_in_the_queue_raises(device: DeviceWorker) -> None:
    gate = Gate()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(device.run(gate))
        await entered(gate)
        late = tasks.create_task(_expect_deadline(device, time.monotonic()))
        await asyncio.sleep(0)
        gate.open.set()
        assert await late


async def _expect_deadline(device: DeviceWorker, deadline_s: float) -> bool:
    with pytest.raises(DeadlinePassed):
        await device.run(lambda: pytest.fail("must not run"), deadline_s=deadline_s)
    return True


async def test_errors_reach_the_caller(device: DeviceWorker) -> None:
    with pytest.raises(ZeroDivisionError):
        await device.run(lambda: 1 // 0)
    assert (await device.run(lambda: 5)).value == 5


async def test_cancelled_caller_waits_for_its_running_job(device: DeviceWorker) -> None:
    gate = Gate()
    caller = asyncio.ensure_future(device.run(gate))
    await entered(gate)
    for _ in range(3):  # its client leaves, then its deadline passes, then the pod ends
        caller.cancel()
        for _ in range(3):
            await asyncio.sleep(0)
        assert not caller.done()
    gate.open.set()
    with pytest.raises(asyncio.CancelledError):
        await caller


async def test_caller_cancelled_twice_waits_for_its_running_job(device: DeviceWorker) -> None:
    """Its client leaves, then its deadline passes: what the inference uses is in use still."""
    gate = Gate()
    caller = asyncio.ensure_future(device.run(gate))
    await entered(gate)
    for _ in range(2):
        caller.cancel()
        for _ in range(3):
            await asyncio.sleep(0)
    assert not caller.done()
    gate.open.set()
    with pytest.raises(asyncio.CancelledError):
        await caller


async def test_caller_cancelled_in_the_turn_of_its_result_ends(device: DeviceWorker) -> None:
    """Its result comes after the cancellation was asked for, before the caller hears of it."""
    gate = Gate()
    caller = asyncio.ensure_future(device.run(gate))
    await entered(gate)
    gate.open.set()
    device.close()  # waits, without the loop, until the device's thread has told it the result
    caller.cancel()
    done, _ = await asyncio.wait([caller], timeout=30)
    assert done
    assert caller.cancelled()


async def test_failed_job_is_freed(device: DeviceWorker) -> None:
    """Its error's traceback leads to the batch, and that to the error: no cycle is left."""

    class Content:
        def fail(self) -> None:
            try:
                raise KeyError
            except KeyError as cause:
                raise ValueError("no such thing") from cause

    async def failed() -> weakref.ref[Content]:
        content = Content()
        with contextlib.suppress(ValueError):
            await device.run(content.fail)
        return weakref.ref(content)

    with pytest.raises(ValueError, match="no such thing") as raised:
        await device.run(Content().fail)
    assert "in fail" in raised.value.__notes__[0]
    gc.disable()
    try:
        content = await failed()
        await device.run(list)  # the device's thread has nothing of the first any more
        assert content() is None
    finally:
        gc.enable()


async def test_full_queue_raises(device: DeviceWorker) -> None:
    gate = Gate()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(device.run(gate))
        await entered(gate)
        for _ in range(8):
            tasks.create_task(device.run(lambda: None))
        await asyncio.sleep(0)
        with pytest.raises(QueueFull):
            await device.run(lambda: None)
        gate.open.set()


def _stop_iteration() -> None:
    raise StopIteration("an empty iterator")


def _panic() -> None:
    tokenizer = json.dumps(
        {
            "version": "1.0",
            "added_tokens": [],
            "normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAA"},
            "model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"},
        }
    )
    tokenizers.Tokenizer.from_str(tokenizer)


@pytest.mark.parametrize(
    ("work", "name"), [(_stop_iteration, "StopIteration"), (_panic, "PanicException")]
)
async def test_stop_iteration_and_panics_reach_the_caller(
    device: DeviceWorker, work: Callable[[], None], name: str
) -> None:
    with pytest.raises(RuntimeError, match=name):
        await asyncio.wait_for(device.run(work), 60)
    with ThreadPoolExecutor(1) as threads, pytest.raises(RuntimeError, match=name):
        await asyncio.wait_for(in_thread(threads, work), 60)
    assert (await device.run(lambda: "goes on")).value == "goes on"
