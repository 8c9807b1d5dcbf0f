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
TICK_S = 0.001


@dataclass(frozen=True, slots=True)
class Batches:
    """Inferences per second, one figure for each repeat."""

    clients: int
    one_by_one: list[float]
    batched: list[float]
    stalls_s: list[float]
    """Longest time in each repeat for which the event loop stood still beside batches."""


def measure_batches(
    folder: Path, memory: DeviceMemory, *, clients: int, repeats: int, seconds: float
) -> Batches:
    """In turn, after one burst of each that is not counted."""
    found = Batches(clients, [], [], [])
    with served_model(folder, memory, clients=clients) as model:
        for _ in range(repeats + 1):
            found.one_by_one.append(_one_by_one(model, seconds))
            rate, stall_s = _together(model, clients, seconds)
            found.batched.append(rate)
            found.stalls_s.append(stall_s)
    return Batches(clients, found.one_by_one[1:], found.batched[1:], found.stalls_s[1:])


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


def _together(model: ServedModel, clients: int, seconds: float) -> tuple[float, float]:
    """Inferences per second, and the longest stall of the event loop."""

    async def run() -> tuple[int, float]:
        watch = asyncio.create_task(_longest_stall_s(seconds))
        latencies_s = await client_latencies(model, clients=clients, seconds=seconds)
        return len(latencies_s), await watch

    begun_s = time.perf_counter()
    count, stall_s = asyncio.run(run())
    return count / (time.perf_counter() - begun_s), stall_s


async def _longest_stall_s(seconds: float) -> float:
    longest_s, last_s = 0.0, time.perf_counter()
    until_s = last_s + seconds
    while last_s < until_s:
        await asyncio.sleep(TICK_S)
        now_s = time.perf_counter()
        longest_s, last_s = max(longest_s, now_s - last_s - TICK_S), now_s
    return longest_s


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
