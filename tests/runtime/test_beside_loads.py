"""What never waits for what, on a device whose copies and inferences a test holds up."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
import torch

from runtime.device.staged_memory import StagedMemory
from runtime.device.worker import DeviceWorker
from runtime.threads import in_thread
from runtime.tiers.host_image import HostImage
from tests.runtime.device.test_worker import Gate, entered
from tests.runtime.fake_engine import FakeEngine
from tests.runtime.local_pod import local_pod, spec_of
from tests.servers import wait_until

PIECE_BYTES = 64 * 1024


def staged(engine: FakeEngine) -> StagedMemory:
    return StagedMemory(engine, buffers=4, buffer_bytes=PIECE_BYTES, readers=2)


async def until(condition: Callable[[], object], what: str) -> None:
    await asyncio.to_thread(partial(wait_until, condition, what=what, timeout_s=60))


async def test_an_inference_waits_for_no_copy(models: Path, tmp_path: Path) -> None:
    served, other = spec_of("served", models / "tiny-bert"), spec_of("other", models / "tiny-t5")
    engine = FakeEngine()

    async with local_pod(tmp_path, memory=staged(engine)) as pod:
        await pod.load(served)
        alone = await pod.answer(served)
        engine.may_copy.clear()
        asked = engine._asked
        loading = asyncio.create_task(pod.load(other))
        try:
            await until(lambda: engine._asked > asked, "a copy is under way")
            assert await asyncio.wait_for(pod.answer(served), 60) == alone
            assert not loading.done()
        finally:
            engine.may_copy.set()
        await loading
        assert await pod.answer(other)


async def test_copies_and_tokenising_wait_for_no_inference(models: Path, tmp_path: Path) -> None:
    served, other = spec_of("served", models / "tiny-bert"), spec_of("other", models / "tiny-t5")
    engine, gate = FakeEngine(), Gate()

    async with local_pod(tmp_path, memory=staged(engine)) as pod:
        await pod.load(served)
        before = len(engine.done_order)
        processor = pod.loader.store.by_key[served.key].model.processor
        size_bytes = (models / "tiny-t5" / "model.safetensors").stat().st_size
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(pod.loader.device.run(gate))
            await entered(gate)
            try:
                loading = tasks.create_task(pod.load(other))
                pieces = size_bytes // PIECE_BYTES
                await until(lambda: len(engine.done_order) - before >= pieces, "all is copied")
                with ThreadPoolExecutor(1) as threads:
                    assert await in_thread(threads, processor.preprocess, ["some words"])
                assert not loading.done()  # its first inference comes after the running one
            finally:
                gate.open.set()


async def test_a_result_waits_for_no_later_inference(device: DeviceWorker) -> None:
    gate = Gate()

    async with asyncio.TaskGroup() as tasks:
        first = tasks.create_task(device.run(lambda: 7))
        tasks.create_task(device.run(gate))
        await entered(gate)
        try:
            assert (await asyncio.wait_for(first, 60)).value == 7
        finally:
            gate.open.set()


def test_copies_come_in_pieces_and_of_a_loaded_model_from_its_image(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Inputs of inferences wait for those under way: two of them, whatever is loaded.

    The first load leaves an image, which is registered beside it.
    """
    spec = spec_of("m", models / "tiny-t5")

    class Watching(FakeEngine):
        def __init__(self) -> None:
            super().__init__()
            self.sizes: set[int] = set()

        def copy(self, target: torch.Tensor, source: torch.Tensor) -> object:  # type: ignore[override]
            self.sizes.add(target.nbytes)
            return super().copy(target, source)

    async def run(engine: Watching) -> None:
        memory = staged(engine)
        async with local_pod(tmp_path, memory=memory, host_bytes=1 << 28, fills_host=True) as pod:
            await pod.load(spec)
            await until(lambda: engine.registrations, "registered")
            await pod.unload(spec)
            monkeypatch.setattr(HostImage, "read_into", None)  # from where they lie
            await pod.load(spec)
            assert await pod.answer(spec)

    engine = Watching()
    asyncio.run(run(engine))
    assert max(engine.sizes) == PIECE_BYTES
