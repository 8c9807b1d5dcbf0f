"""A model of several spans behind a proxy that can hold its bytes back."""

from __future__ import annotations

import asyncio
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import boto3
import torch
from safetensors.torch import load_file, save_file

from registry.domain.model import ModelName, ModelSpec
from runtime.device.staged_memory import StagedMemory
from runtime.storage.partial_file import SPAN_BYTES
from tests.runtime.faults import Asked, Fault, faulty_proxy
from tests.runtime.local_pod import LocalPod, local_pod
from tests.servers import copy_model, wait_until

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator
    from pathlib import Path

    from tests.runtime.fake_engine import FakeEngine
    from tests.runtime.faults import FaultyProxy
    from tests.servers import S3Server

WEIGHTS = "model.safetensors"
BUCKET = "large-models"
SPANS = 3


def make_large(source: Path, target: Path) -> Path:
    """A copy of a tiny model with a tensor that fills its file up to three spans."""
    copy_model(source, target)
    tensors = load_file(target / WEIGHTS)
    tensors["zz.filler"] = torch.arange(int(2.1 * SPAN_BYTES) // 4, dtype=torch.float32)
    save_file(tensors, target / WEIGHTS)
    return target


def put_model(s3: S3Server, folder: Path, name: str) -> ModelSpec:
    """Put a model's folder into the store, its weights with a checksum of S3's own."""
    uri = f"s3://{BUCKET}/{name}"
    s3.put_folder(folder, uri)
    client = boto3.session.Session().client(
        "s3",
        endpoint_url=s3.url,
        region_name="us-east-1",
        aws_access_key_id="test",
        aws_secret_access_key="test",
    )
    body = (folder / WEIGHTS).read_bytes()
    key = f"{name}/{WEIGHTS}"
    client.put_object(Bucket=BUCKET, Key=key, Body=body, ChecksumAlgorithm="CRC32")
    return ModelSpec(ModelName("default", name), uri)


@dataclass
class Held:
    """A store whose bytes of weights, from some span on, wait until they are let go."""

    proxy: FaultyProxy
    from_span: int = SPANS - 1
    open: threading.Event = field(default_factory=threading.Event)
    fault: Callable[[Asked], Fault | None] = lambda _: None
    """What is wrong with an answer beside that."""

    def look(self, asked: Asked) -> Fault | None:
        """What the proxy does to an answer."""
        fault = self.fault(asked) or Fault()
        is_late = asked.range is not None and asked.range[0] >= self.from_span * SPAN_BYTES
        if is_late and asked.path.endswith(WEIGHTS):
            return replace(fault, until=self.open)
        return fault

    def starts(self) -> list[int]:
        """First bytes of the ranges of weights that were asked for."""
        return sorted(each.range[0] for each in self.proxy.ranges(WEIGHTS) if each.range)


_HELD_AT_MOST_S = 240.0


@contextmanager
def held_store(s3: S3Server) -> Iterator[Held]:
    """The store behind a proxy that holds the last span back."""
    with faulty_proxy(s3.url) as proxy:
        held = Held(proxy)
        proxy.fault = held.look
        let_go = threading.Timer(_HELD_AT_MOST_S, held.open.set)  # a test that fails must end
        let_go.start()
        try:
            yield held
        finally:
            let_go.cancel()
            held.open.set()


async def until(condition: Callable[[], bool], what: str) -> None:
    """Return once the condition holds; the event loop goes on meanwhile."""
    await asyncio.to_thread(wait_until, condition, what=what)


def staged(engine: FakeEngine) -> StagedMemory:
    return StagedMemory(engine, buffers=3, buffer_bytes=2 * 1024**2, readers=2)


def run(
    folder: Path, held: Held, work: Callable[[LocalPod], Awaitable[None]], **settings: object
) -> None:
    async def main() -> None:
        environment = held.proxy.environment
        async with local_pod(folder, environment=environment, **settings) as pod:  # type: ignore[arg-type]  # passed on
            try:
                await work(pod)
            finally:
                held.open.set()

    asyncio.run(main())


def visible(pod: LocalPod, spec: ModelSpec) -> set[str]:
    """Weights in the cache under their own name."""
    folder = pod.loader.resolver.cache.folder_of(spec.key)
    return {path.name for path in folder.rglob("*.safetensors")}


def assert_nothing_is_taken(pod: LocalPod, spec: ModelSpec, engine: FakeEngine) -> None:
    assert engine.allocated_bytes == 0
    assert pod.loader.store.reserved_bytes == 0
    assert not visible(pod, spec)
    assert not pod.loader.store.holds(spec.key)
