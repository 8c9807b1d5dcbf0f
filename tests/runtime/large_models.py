"""A model of several spans behind a proxy that can delay its bytes."""

import asyncio
import gc
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from registry.domain.model import ModelName, ModelSpec
from runtime.device.memory import DeviceMemory
from runtime.device.staged_memory import StagedMemory
from runtime.storage.partial_file import JOURNAL_SUFFIX, SPAN_BYTES
from tests.runtime.fake_engine import FakeEngine
from tests.runtime.faulty_proxy import Fault, FaultyProxy, ProxiedRequest, faulty_proxy
from tests.runtime.local_pod import LocalPod, local_pod
from tests.servers import S3Server, copy_model, wait_until

WEIGHTS = "model.safetensors"
BUCKET = "large-models"
SPANS = 3
_HEADER_BYTES = 256 * 1024
PART_BYTES = 2 * 1024**2


def make_large(source: Path, target: Path) -> Path:
    """A copy of a tiny model with a tensor that pads its file to three spans."""
    copy_model(source, target)
    tensors = load_file(target / WEIGHTS)
    tensors["zz.filler"] = torch.arange(int(2.1 * SPAN_BYTES) // 4, dtype=torch.float32)
    save_file(tensors, target / WEIGHTS)
    return target


def put_model(s3: S3Server, folder: Path, name: str) -> ModelSpec:
    """Upload a model's folder, its weights with a checksum that S3 computes."""
    uri = f"s3://{BUCKET}/{name}"
    s3.put_folder(folder, uri)
    body = (folder / WEIGHTS).read_bytes()
    key = f"{name}/{WEIGHTS}"
    s3.client().put_object(Bucket=BUCKET, Key=key, Body=body, ChecksumAlgorithm="CRC32")
    return ModelSpec(ModelName("default", name), uri)


@dataclass
class GatedStore:
    """A store that delays the weights from some span on until `open` is set."""

    proxy: FaultyProxy
    from_span: int = SPANS - 1
    open: threading.Event = field(default_factory=threading.Event)
    fault: Callable[[ProxiedRequest], Fault | None] = lambda _: None
    """Further fault of a response."""

    def fault_of(self, request: ProxiedRequest) -> Fault | None:
        fault = self.fault(request) or Fault()
        is_late = request.range is not None and request.range[0] >= self.from_span * SPAN_BYTES
        if is_late and request.path.endswith(WEIGHTS):
            return replace(fault, until=self.open)
        return fault

    def starts(self) -> list[int]:
        """First bytes of the ranges of weights that were fetched, without the header's read."""
        ranges = [each.range for each in self.proxy.ranges(WEIGHTS) if each.range]
        return sorted(first for first, last in ranges if last - first >= _HEADER_BYTES)


_MAX_DELAY_S = 240.0


@contextmanager
def open_gated_store(s3: S3Server) -> Iterator[GatedStore]:
    """The store behind a proxy that delays the last span."""
    with faulty_proxy(s3.url) as proxy:
        store = GatedStore(proxy)
        proxy.fault = store.fault_of
        opening = threading.Timer(_MAX_DELAY_S, store.open.set)  # a test that fails must end
        opening.start()
        try:
            yield store
        finally:
            opening.cancel()
            store.open.set()


async def until(condition: Callable[[], bool], what: str) -> None:
    """Return once the condition holds, without blocking the event loop."""
    await asyncio.to_thread(wait_until, condition, what=what)


async def two_spans(pod: LocalPod, spec: ModelSpec) -> None:
    """Return once two spans of the model's weights have come."""
    journal = pod.loader.resolver.cache.folder_of(spec.key) / f"{WEIGHTS}{JOURNAL_SUFFIX}"

    def are_here() -> bool:
        return journal.exists() and len(journal.read_text().splitlines()) == 3

    await until(are_here, "two spans are here")


def staged(engine: FakeEngine) -> StagedMemory:
    return StagedMemory(engine, buffers=3, buffer_bytes=PART_BYTES, readers=2)


@asynccontextmanager
async def gated_pod(
    folder: Path, gated_store: GatedStore, memory: DeviceMemory | None = None
) -> AsyncIterator[LocalPod]:
    """A pod that reads the store, which opens at the end at the latest."""
    gc.disable()  # what a load gives back must not wait for it
    try:
        environment = gated_store.proxy.environment
        async with local_pod(folder, environment=environment, memory=memory) as pod:
            try:
                yield pod
            finally:
                gated_store.open.set()
    finally:
        gc.enable()


def visible(pod: LocalPod, spec: ModelSpec) -> set[str]:
    """Weights in the cache under their final names."""
    folder = pod.loader.resolver.cache.folder_of(spec.key)
    return {path.name for path in folder.rglob("*.safetensors")}


def assert_nothing_is_held(pod: LocalPod, spec: ModelSpec, engine: FakeEngine) -> None:
    assert engine.allocated_bytes == 0
    assert pod.loader.store.reserved_bytes == 0
    assert not visible(pod, spec)
    assert not pod.loader.store.holds(spec.key)
