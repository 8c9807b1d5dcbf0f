"""Batches of the device worker: composition, errors, cancellation, hangs."""

import asyncio
import threading
import time
from collections.abc import Coroutine, Iterator, Sequence
from typing import Any

import pytest

from registry.domain.model import ModelPolicy
from runtime.device.queue import MAX_CAUSES, DeviceModel, Payload
from runtime.device.worker import DeviceWorker
from runtime.errors import InferenceHung, ModelBroken, RequestHung
from tests.runtime.fake_engine import FakeEngine
from tests.servers import wait_until


@pytest.fixture
def device() -> Iterator[DeviceWorker]:
    worker = DeviceWorker(threads=1, max_queued=64, timeout_s=300.0)
    worker.start()
    yield worker
    worker.close()


class Model:
    """Squares its contents, and records its batches; strings fail."""

    def __init__(self, **policy: Any) -> None:
        self.batches: list[list[Any]] = []
        self.entered = threading.Event()
        self.open = threading.Event()
        self.device_model = DeviceModel(
            "default/m@1", "default/m", self.infer, ModelPolicy(**policy)
        )

    def infer(self, contents: Sequence[Any]) -> list[Any]:
        self.batches.append(list(contents))
        if str(contents[0]).startswith("wait"):
            self.entered.set()
            assert self.open.wait(60)
            return ["waited"]
        return [content * content for content in contents]

    def ask(self, device: DeviceWorker, content: Any, **options: Any) -> Coroutine[Any, Any, Any]:
        batch_key = None if str(content).startswith("wait") else "numbers"
        return device.infer(self.device_model, Payload(content, batch_key=batch_key), **options)


async def behind_another(
    device: DeviceWorker,
    model: Model,
    requests: Sequence[Coroutine[Any, Any, Any]],
    *,
    cancelled: int | None = None,
) -> list[Any]:
    """Results of requests that are queued while the device is busy; one may be cancelled there."""
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(model.ask(device, "wait"))
        assert await asyncio.to_thread(model.entered.wait, 60)
        queued = [tasks.create_task(each) for each in requests]
        if cancelled is not None:
            asyncio.get_running_loop().call_soon(queued[cancelled].cancel)
        for _ in range(3):  # queued; cancellation delivered; removed
            await asyncio.sleep(0)
        model.open.set()
        return await asyncio.gather(*queued, return_exceptions=True)


def outcome(result: Any) -> Any:
    return type(result) if isinstance(result, BaseException) else result.value


async def test_batches_queued_requests(device: DeviceWorker) -> None:
    model = Model(max_batch_size=8)

    results = await behind_another(device, model, [model.ask(device, n) for n in range(5)])
    assert [each.value for each in results] == [0, 1, 4, 9, 16]
    assert {each.rows for each in results} == {5}
    assert len({each.compute_s for each in results}) == 1
    assert all(each.wait_s > 0 for each in results)
    assert model.batches == [["wait"], [0, 1, 2, 3, 4]]


async def test_failed_batch_keeps_no_memory_from_its_retry(device: DeviceWorker) -> None:
    """Two inferences do not fit beside each other; the error of the first must not hold its own."""
    engine = FakeEngine(memory_bytes=3 * 100)
    model = Model(max_batch_size=8)

    def infer(contents: Sequence[Any]) -> list[Any]:
        if contents[0] == "wait":
            return Model.infer(model, contents)
        activations = [engine.allocate(100) for _ in contents]
        workspace = [engine.allocate(100) for _ in contents]  # of three: the fourth does not fit
        return [len(activations) + len(workspace)] * len(contents)

    model.device_model.infer = infer

    results = await behind_another(device, model, [model.ask(device, n) for n in range(3)])
    assert [outcome(each) for each in results] == [2, 2, 2]
    assert engine.allocated_bytes == 0


async def test_error_of_a_request_keeps_no_memory(device: DeviceWorker) -> None:
    engine = FakeEngine()

    def infer(contents: Sequence[Any]) -> list[Any]:
        held = engine.allocate(100 * len(contents))
        raise ValueError(f"{held.nbytes} bytes, then a fault")

    with pytest.raises(ValueError, match="100 bytes") as raised:
        await device.infer(DeviceModel("default/m@1", "m", infer), Payload(1))
    error = raised.value
    assert engine.allocated_bytes == 0
    assert error.__traceback__ is not None


async def test_a_step_that_leaves_less_time_to_others_runs_first(device: DeviceWorker) -> None:
    model = Model(max_batch_size=1)
    deadline_s = time.monotonic() + 50

    await behind_another(
        device,
        model,
        [
            model.ask(device, left, deadline_s=deadline_s, due_s=deadline_s - left)
            for left in (5, 90, 0, 20)
        ],
    )
    assert model.batches[1:] == [[90], [20], [5], [0]]


async def test_failed_batch_fails_only_the_faulty_request(device: DeviceWorker) -> None:
    model = Model()

    async def expect(model: Model, content: Any) -> Any:
        try:
            return (await model.ask(device, content)).value
        except TypeError as error:
            return type(error)

    results = await behind_another(device, model, [expect(model, each) for each in (2, "bad", 3)])
    assert results == [4, TypeError, 9]
    assert model.batches[1:] == [[2, "bad", 3], [2], ["bad"], [3]]


async def test_failed_batch_runs_no_request_again_that_nobody_waits_for(
    device: DeviceWorker,
) -> None:
    began, ends = threading.Event(), threading.Event()
    runs: list[list[Any]] = []
    model = Model()

    def infer(contents: Sequence[Any]) -> list[Any]:
        if contents == ["wait"]:
            return Model.infer(model, contents)
        runs.append(list(contents))
        if len(contents) > 1:
            began.set()
            assert ends.wait(60)
            raise MemoryError
        return list(contents)

    model.device_model.infer = infer

    async def leave() -> None:
        leaver = asyncio.ensure_future(model.ask(device, "leaves"))
        await asyncio.to_thread(began.wait, 60)
        leaver.cancel()
        await asyncio.sleep(0)
        ends.set()
        with pytest.raises(asyncio.CancelledError):
            await leaver

    results = await behind_another(device, model, [leave(), model.ask(device, "stays")])
    assert [results[0], results[1].value] == [None, "stays"]
    assert [sorted(each) for each in runs] == [["leaves", "stays"], ["stays"]]


async def test_cancelled_request_in_the_queue_is_not_inferred(device: DeviceWorker) -> None:
    model = Model()

    requests = [model.ask(device, n) for n in (1, 2, 3)]
    results = await behind_another(device, model, requests, cancelled=1)
    assert [outcome(each) for each in results] == [1, asyncio.CancelledError, 9]
    assert model.batches[1:] == [[1, 3]]


async def test_cancelled_request_in_a_batch_does_not_affect_the_others(
    device: DeviceWorker,
) -> None:
    entered, open_ = threading.Event(), threading.Event()

    def infer(contents: Sequence[Any]) -> list[Any]:
        entered.set()
        assert open_.wait(60)
        return list(contents)

    device_model = DeviceModel(
        "default/m@1", "default/m", infer, ModelPolicy(max_batch_size=2, max_batch_wait_s=5)
    )

    one, two = (
        asyncio.ensure_future(device.infer(device_model, Payload(n, batch_key="n"))) for n in (1, 2)
    )
    assert await asyncio.to_thread(entered.wait, 60)
    one.cancel()
    open_.set()
    assert (await two).value == 2
    with pytest.raises(asyncio.CancelledError):
        await one


async def test_batch_waits_to_fill_if_configured(device: DeviceWorker) -> None:
    model = Model(max_batch_size=2, max_batch_wait_s=30.0)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(model.ask(device, 1))
        await asyncio.sleep(0.01)
        tasks.create_task(model.ask(device, 2))
    assert model.batches == [[1, 2]]


async def test_other_models_run_while_a_batch_waits_to_fill(device: DeviceWorker) -> None:
    patient, other = Model(max_batch_wait_s=30.0), Model()

    waiting = asyncio.ensure_future(patient.ask(device, 1))
    assert (await other.ask(device, 3)).value == 9
    assert not waiting.done()
    waiting.cancel()
    await asyncio.wait([waiting])
    assert patient.batches == []


async def test_a_hang_is_charged_to_its_request_first(device: DeviceWorker) -> None:
    hanging, other = Model(max_infer_s=0.2), Model()
    hung: list[tuple[str, bool]] = []
    device.on_hung = lambda key, reason, is_broken: hung.append((key, is_broken))

    with pytest.raises(InferenceHung, match=r"did not end within 0\.2 s"):
        await hanging.ask(device, "wait")
    assert device.stuck_threads == 1
    with pytest.raises(RequestHung, match="refused for 300 s"):
        await hanging.ask(device, "wait")
    with pytest.raises(InferenceHung):
        await hanging.ask(device, "wait differently")
    with pytest.raises(ModelBroken):
        await hanging.ask(device, 2)
    assert (await other.ask(device, 3)).value == 9
    key = hanging.device_model.key
    assert hung == [(key, False), (key, True)]
    hanging.open.set()
    wait_until(lambda: not device.stuck_threads, what="its threads are free again")


async def test_a_model_that_serves_others_is_refused_only_after_several_requests(
    device: DeviceWorker,
) -> None:
    model = Model(max_infer_s=0.2)

    for number in range(MAX_CAUSES - 1):
        with pytest.raises(InferenceHung):
            await model.ask(device, f"wait {number}")
        assert (await model.ask(device, 2)).value == 4
    for number in range(MAX_CAUSES - 1):
        with pytest.raises(RequestHung):
            await model.ask(device, f"wait {number}")
    with pytest.raises(InferenceHung):
        await model.ask(device, "wait once more")
    with pytest.raises(ModelBroken):
        await model.ask(device, 2)
    model.open.set()
    wait_until(lambda: not device.stuck_threads, what="its threads are free again")


async def test_work_that_belongs_to_no_request_breaks_its_model(device: DeviceWorker) -> None:
    model = Model(max_infer_s=0.2)

    with pytest.raises(InferenceHung):
        await device.run(lambda: model.open.wait(60), model=model.device_model)
    with pytest.raises(ModelBroken):
        await model.ask(device, 2)
    model.open.set()


async def test_a_thread_that_runs_python_ends_soon_after_its_hang(device: DeviceWorker) -> None:
    model = Model(max_infer_s=0.2)

    def loop() -> None:
        while True:
            pass

    for _ in range(5):
        model.device_model.broken_reason = None
        with pytest.raises(InferenceHung):
            await device.run(loop, model=model.device_model)
    wait_until(lambda: not device.stuck_threads, what="threads ended")
    assert device.is_alive


async def test_queued_requests_behind_a_hang_are_served(device: DeviceWorker) -> None:
    model, other = Model(max_infer_s=0.5), Model()

    async with asyncio.TaskGroup() as tasks:
        first = tasks.create_task(_expect(model.ask(device, "wait"), InferenceHung))
        assert await asyncio.to_thread(model.entered.wait, 60)
        second = tasks.create_task(model.ask(device, 2))
        third = tasks.create_task(other.ask(device, 3))
    assert first.result()
    assert second.result().value == 4
    assert third.result().value == 9
    model.open.set()


async def _expect(request: Coroutine[Any, Any, Any], error: type[Exception]) -> bool:
    with pytest.raises(error):
        await request
    return True


async def test_pods_time_limit_is_the_default_of_models() -> None:
    worker = DeviceWorker(threads=1, max_queued=8, timeout_s=0.05)
    worker.start()
    model = Model()

    with pytest.raises(InferenceHung, match=r"0\.05 s"):
        await model.ask(worker, "wait")
    model.open.set()
    worker.close()


async def test_out_of_memory_reduces_later_batches(device: DeviceWorker) -> None:
    sizes: list[int] = []

    def infer(contents: Sequence[Any]) -> list[Any]:
        sizes.append(len(contents))
        if len(contents) > 3:
            raise MemoryError("no room for so many")
        return list(contents)

    device_model = DeviceModel("default/m@1", "default/m", infer)
    model = Model()

    for _ in range(2):
        model.entered.clear()
        model.open.clear()
        results = await behind_another(
            device, model, [device.infer(device_model, Payload(n, batch_key="n")) for n in range(6)]
        )
        assert [each.value for each in results] == list(range(6))
    assert sizes == [6, 1, 1, 1, 1, 1, 1, 3, 3]
