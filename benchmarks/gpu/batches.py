"""Inferences per second with many clients: batches of the device worker, and eager one by one."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks.tiers.models import WEIGHTS
from benchmarks.tiers.ours import filled_skeleton
from registry.domain.model import ModelName, ModelPolicy, ModelSpec
from runtime.device.memory import DeviceMemory
from runtime.device.queue import ModelInputs
from runtime.device.worker import DeviceWorker
from runtime.engines.engine import Skeletons
from runtime.loading.model_store import ServedModel
from runtime.tasks.processors import load_processor
from runtime.weights.weight_source import DiskWeights

TOKENS = 32
"""Of each text."""


@dataclass(frozen=True, slots=True)
class Batches:
    """Inferences per second, one figure for each repeat."""

    clients: int
    one_by_one: list[float]
    batched: list[float]


def measure_batches(
    folder: Path, memory: DeviceMemory, *, clients: int, repeats: int, seconds: float
) -> Batches:
    """In turn, after one burst of each that is not counted."""
    found = Batches(clients, [], [])
    with served_model(folder, memory, clients=clients) as model:
        for _ in range(repeats + 1):
            found.one_by_one.append(_one_by_one(model, seconds))
            found.batched.append(_together(model, clients, seconds))
    return Batches(clients, found.one_by_one[1:], found.batched[1:])


@contextmanager
def served_model(folder: Path, memory: DeviceMemory, *, clients: int) -> Iterator[ServedModel]:
    """The model behind a device worker, in batches of at most one request of each client."""
    skeleton = filled_skeleton(folder, DiskWeights([folder / WEIGHTS]), Skeletons(), memory)
    device = DeviceWorker(threads=torch.get_num_threads(), max_queued=2 * clients)
    device.start()
    spec = ModelSpec(
        ModelName("default", "batches"), folder.as_uri(), policy=ModelPolicy(max_batch_size=clients)
    )
    model = ServedModel(
        spec, processor=load_processor(folder, None), network=skeleton.network, device=device
    )
    try:
        yield model
    finally:
        model.stop()
        device.close()
        skeleton.detach()


def _one_by_one(model: ServedModel, seconds: float) -> float:
    inputs = model.processor.batching.example(1, TOKENS)
    count, begun_s = 0, time.perf_counter()
    with torch.inference_mode():
        while time.perf_counter() - begun_s < seconds:
            model.infer_together([ModelInputs(inputs)])
            count += 1
    return count / (time.perf_counter() - begun_s)


def _together(model: ServedModel, clients: int, seconds: float) -> float:
    begun_s = time.perf_counter()
    count = len(asyncio.run(client_latencies(model, clients=clients, seconds=seconds)))
    return count / (time.perf_counter() - begun_s)


async def client_latencies(model: ServedModel, *, clients: int, seconds: float) -> list[float]:
    """Seconds of each inference, of clients that each wait for their last one."""
    inputs = model.processor.batching.example(1, TOKENS)
    latencies_s: list[float] = []
    until_s = time.perf_counter() + seconds

    async def ask() -> None:
        while (asked_s := time.perf_counter()) < until_s:
            await model.infer(inputs)
            latencies_s.append(time.perf_counter() - asked_s)

    await asyncio.gather(*(ask() for _ in range(clients)))
    return latencies_s
