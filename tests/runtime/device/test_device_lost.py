"""A GPU that failed for good: its pod refuses requests and ends; no model is marked as broken.

The errors are torch's own, with the codes CUDA gives; no GPU is needed to raise them.
"""

import asyncio
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers.generation.continuous_batching import cache

from registry.domain.model import Tier
from runtime.device.device_errors import is_device_error, is_device_lost, is_out_of_memory
from runtime.device.queue import DeviceModel, Payload
from runtime.device.staged_memory import StagedMemory
from runtime.device.worker import DeviceWorker
from runtime.errors import DeviceFailed, DeviceFull, InferenceFailed, PodDraining
from runtime.loading.model_store import ServedModel
from runtime.tasks.tensor_task import TensorProgram
from tests.runtime.fake_engine import FakeCopy, FakeEngine
from tests.runtime.local_pod import local_pod, spec_of
from tests.tiny_models import make_model

ASSERTION, ILLEGAL_ADDRESS, TOO_MANY_RESOURCES = 710, 700, 701


def device_error(code: int) -> torch.AcceleratorError:
    error = torch.AcceleratorError(f"CUDA error {code}")
    error.error_code = code  # type: ignore[attr-defined]  # torch sets it in C++
    return error


class Faulty:
    """A model whose inferences fail with a code; the first one blocks until released."""

    def __init__(self, code: int) -> None:
        self.code = code
        self.calls = 0
        self.entered, self.open = threading.Event(), threading.Event()
        self.device_model = DeviceModel("default/bad@1", "default/bad", self.infer)

    def infer(self, contents: Sequence[Any]) -> list[Any]:
        del contents
        self.calls += 1
        self.entered.set()
        assert self.open.wait(60)
        raise device_error(self.code)


async def _outcome(
    device: DeviceWorker, device_model: DeviceModel, content: Any, kind: str | None
) -> Any:
    try:
        return (await device.infer(device_model, Payload(content, batch_key=kind))).value
    except Exception as error:
        return error


async def test_queued_requests_of_a_lost_device_can_be_retried_elsewhere(
    device: DeviceWorker,
) -> None:
    bad, good = Faulty(ASSERTION), DeviceModel("default/good@1", "default/good")
    reasons: list[str] = []
    device.on_lost = reasons.append

    under = asyncio.create_task(_outcome(device, bad.device_model, 1, None))
    assert await asyncio.to_thread(bad.entered.wait, 30)
    behind = asyncio.create_task(_outcome(device, good, 2, "number"))
    await asyncio.sleep(0)  # it is queued now
    bad.open.set()
    under, behind, later = [await under, await behind, await _outcome(device, good, 3, "number")]
    assert isinstance(under, InferenceFailed)
    assert under.refusal is None  # it was executed: it could break another device
    assert isinstance(behind, PodDraining)
    assert isinstance(later, PodDraining)
    assert behind.refusal == later.refusal == "draining"
    assert not device.is_alive
    assert len(reasons) == 1
    assert "710" in reasons[0]


async def test_batch_that_lost_the_device_is_not_retried(device: DeviceWorker) -> None:
    bad = Faulty(ILLEGAL_ADDRESS)

    entered, leave = threading.Event(), threading.Event()

    def wait(contents: Sequence[Any]) -> list[Any]:
        entered.set()
        assert leave.wait(60)
        return list(contents)

    first = asyncio.create_task(_outcome(device, DeviceModel("default/w@1", "w", wait), 0, None))
    assert await asyncio.to_thread(entered.wait, 30)
    batch = [asyncio.create_task(_outcome(device, bad.device_model, n, "number")) for n in range(3)]
    await asyncio.sleep(0)
    bad.open.set()
    leave.set()
    await first
    for each in batch:
        assert isinstance(await each, InferenceFailed)
    assert bad.calls == 1


async def test_transient_error_does_not_lose_the_device(device: DeviceWorker) -> None:
    bad, good = Faulty(TOO_MANY_RESOURCES), DeviceModel("default/good@1", "default/good")
    bad.open.set()

    failed, answered = [
        await _outcome(device, device_model, 1, None) for device_model in (bad.device_model, good)
    ]
    assert isinstance(failed, torch.AcceleratorError)
    assert answered == 1
    assert device.is_alive


@pytest.mark.parametrize(
    ("error", "is_lost", "is_full"),
    [
        pytest.param(device_error(ASSERTION), True, False, id="assertion"),
        pytest.param(device_error(2), False, True, id="allocation by another library"),
        pytest.param(device_error(900), False, False, id="capture"),
        pytest.param(device_error(712), False, False, id="registered already"),
        pytest.param(torch.AcceleratorError("no code"), True, False, id="no code"),
        pytest.param(torch.OutOfMemoryError("CUDA out of memory"), False, True, id="memory"),
        pytest.param(RuntimeError("shapes differ"), False, False, id="other"),
    ],
)
def test_classifies_errors(error: Exception, is_lost: bool, is_full: bool) -> None:
    assert (is_device_lost(error), is_out_of_memory(error)) == (is_lost, is_full)


ALLOC_FAILED = "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"
EXECUTION_FAILED = "cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"


@pytest.mark.parametrize(
    ("text", "is_device", "is_full"),
    [
        pytest.param(ALLOC_FAILED, True, True, id="cublas-memory"),
        pytest.param(
            "CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`",
            True,
            True,
            id="no-memory-for-a-handle",
        ),
        pytest.param("cuDNN error: CUDNN_STATUS_ALLOC_FAILED", True, True, id="cudnn-memory"),
        pytest.param(
            "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
            True,
            True,
            id="cudnn-9-memory",
        ),
        pytest.param(EXECUTION_FAILED, True, False, id="cudnn"),
        pytest.param(
            "CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm(...)`",
            True,
            False,
            id="cublas",
        ),
        pytest.param("mat1 and mat2 shapes cannot be multiplied", False, False, id="model"),
    ],
)
def test_reads_the_texts_of_libraries(text: str, is_device: bool, is_full: bool) -> None:
    error = RuntimeError(text)
    assert (is_device_error(error), is_out_of_memory(error)) == (is_device, is_full)
    assert not is_device_lost(error)


@pytest.mark.parametrize("is_sticky", [True, False])
async def test_error_of_a_library_loses_the_device_if_later_calls_fail(is_sticky: bool) -> None:
    engine = FakeEngine()
    engine.failure = device_error(ILLEGAL_ADDRESS) if is_sticky else None
    device = DeviceWorker(threads=1, max_queued=4, check_device=engine.check)
    device.start()

    def infer(contents: Sequence[Any]) -> list[Any]:
        raise RuntimeError(f"{EXECUTION_FAILED} of {contents}")

    result = await _outcome(device, DeviceModel("default/m@1", "m", infer), 1, None)
    assert device.is_alive is not is_sticky
    assert isinstance(result, InferenceFailed if is_sticky else RuntimeError)
    device.close()


async def test_error_in_an_inference_of_the_model_does_not_check_the_device() -> None:
    checks: list[None] = []
    device = DeviceWorker(threads=1, max_queued=4, check_device=lambda: checks.append(None))
    device.start()

    def infer(contents: Sequence[Any]) -> list[Any]:
        raise ValueError(f"no place for {contents}")

    await _outcome(device, DeviceModel("default/m@1", "m", infer), 1, None)
    assert checks == []  # it waits for all work of the device
    device.close()


@pytest.mark.parametrize(
    ("text", "raised"),
    [
        pytest.param(ALLOC_FAILED, DeviceFull, id="memory"),
        pytest.param(EXECUTION_FAILED, DeviceFailed, id="other"),
    ],
)
async def test_error_of_a_library_keeps_the_files(
    models: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    text: str,
    raised: type[Exception],
) -> None:
    spec = spec_of("m", models / "tiny-bert")

    async def fail(model: ServedModel) -> None:
        raise RuntimeError(text)

    async with local_pod(tmp_path) as pod:
        with monkeypatch.context() as patch:
            patch.setattr(ServedModel, "warm_up", fail)
            with pytest.raises(raised, match="STATUS"):
                await pod.load(spec)
        assert spec.key in set(pod.loader.resolver.cache.keys())
        assert await pod.load(spec) is Tier.DISK


def test_detects_out_of_memory_as_a_cause() -> None:
    error = InferenceFailed("generation failed")
    error.__cause__ = torch.OutOfMemoryError("CUDA out of memory")
    assert is_out_of_memory(error)


def test_device_error_in_a_program_is_not_invalid_input(tmp_path: Path) -> None:
    task = TensorProgram(make_model("tiny-program", tmp_path) / "model.pt2", None)

    class Network:
        device = torch.device("cpu")

        def __call__(self, inputs: Any) -> Any:
            raise device_error(ASSERTION)

    inputs = task.batching.random_example(1, np.random.default_rng(0))
    with pytest.raises(torch.AcceleratorError):
        task.infer(Network(), inputs)  # type: ignore[arg-type]


class BreakingEngine(FakeEngine):
    """Fails at the first copy."""

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> FakeCopy:
        if source.nbytes:
            raise device_error(ILLEGAL_ADDRESS)
        return super().copy(target, source)


async def test_load_on_a_lost_device_keeps_the_files(models: Path, tmp_path: Path) -> None:
    spec = spec_of("m", models / "tiny-bert")
    engine = BreakingEngine()
    reasons: list[str] = []

    memory = StagedMemory(engine, buffers=2, buffer_bytes=1 << 16, readers=1)
    async with local_pod(tmp_path, memory=memory) as pod:
        pod.loader.device.on_lost = reasons.append
        with pytest.raises(PodDraining, match="device failed while default/m"):
            await pod.load(spec)
        assert spec.key in set(pod.loader.resolver.cache.keys())
        assert pod.loader.store.used_bytes == 0
    assert engine.allocated_bytes == 0
    assert len(reasons) == 1


async def test_no_room_for_a_key_value_cache_evicts_and_keeps_the_files(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    idle, generating = spec_of("idle", models / "tiny-bert"), spec_of("chat", models / "tiny-gpt2")

    def nothing_left() -> tuple[torch.device, int, int, int]:
        return torch.device("cpu"), 1 << 20, 1 << 20, 1 << 20

    async with local_pod(tmp_path) as pod:
        await pod.load(idle)
        with monkeypatch.context() as patch:
            patch.setattr(cache, "get_device_and_memory_breakdown", nothing_left)
            with pytest.raises(DeviceFull, match="key-value cache"):
                await pod.load(generating)
        assert [reason for _, reason, _ in pod.evictions] == ["device-full"]
        assert await pod.load(generating) is Tier.DISK
