"""Tokens per second of the runtime's generation engine, and of transformers' own batching.

From the first token of any sequence to the last of all: transformers' start takes seconds.
"""

import asyncio
import time
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import torch
from transformers import GenerationConfig
from transformers.generation import ContinuousBatchingConfig

from benchmarks.tiers.models import WEIGHTS
from benchmarks.tiers.ours import filled_skeleton
from runtime.device.queue import DeviceModel
from runtime.device.staged_memory import StagedMemory
from runtime.device.worker import DeviceWorker
from runtime.engines.engine import Skeletons
from runtime.generation.cache_memory import PAGE_TOKENS, STEP_TOKENS, cache_shape
from runtime.generation.engine import Sampling
from runtime.generation.limits import GenerationLimits
from runtime.generation.transformers_engine import TransformersEngine
from runtime.weights.weight_source import DiskWeights

PROMPT_TOKENS = 32
CACHE_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class Tokens:
    """Tokens per second, one figure for each repeat."""

    sequences: int
    ours: list[float]
    transformers: list[float]
    pauses_s: list[float]
    """Median time of each repeat from the end of a step of ours to the next."""


def measure_tokens(
    folder: Path, memory: StagedMemory, *, sequences: int, new_tokens: int, repeats: int
) -> Tokens:
    """In turn, with equal caches, greedy, without end tokens; the first of each is not counted."""
    skeleton = filled_skeleton(folder, DiskWeights([folder / WEIGHTS]), Skeletons(), memory)
    network = skeleton.network
    network.generation_config.eos_token_id = None
    network.config.eos_token_id = None
    prompts = [list(range(5 + number, 5 + number + PROMPT_TOKENS)) for number in range(sequences)]
    limits = GenerationLimits(CACHE_BYTES, sequences, new_tokens, timeout_s=600)
    found = Tokens(sequences, [], [], [])
    for _ in range(repeats + 1):
        rate, pause_s = asyncio.run(_ours(network, prompts, new_tokens, limits))
        found.ours.append(rate)
        found.pauses_s.append(pause_s)
        found.transformers.append(_transformers(network, prompts, new_tokens, limits))
    skeleton.detach()
    return Tokens(sequences, found.ours[1:], found.transformers[1:], found.pauses_s[1:])


async def _ours(
    network: Any, prompts: list[list[int]], new_tokens: int, limits: GenerationLimits
) -> tuple[float, float]:
    """Tokens per second, and the median pause between two steps."""
    device = DeviceWorker(threads=torch.get_num_threads(), max_queued=2 * len(prompts))
    device.start()
    loop = asyncio.get_running_loop()
    make = partial(TransformersEngine, network, device, DeviceModel(), limits, loop)
    engine = (await device.run(make)).value
    steps = _timed_steps(engine)
    times_s: list[float] = []

    async def generate(number: int, prompt: list[int]) -> None:
        sampling = Sampling(max_tokens=new_tokens, seed=number, temperature=0)
        async for each in engine.generate(prompt, sampling):
            times_s.extend([time.perf_counter()] * len(each.token_ids))

    await asyncio.gather(*(generate(*each) for each in enumerate(prompts)))
    engine.close()
    device.close()
    pause_s = median(begun_s - ended_s for (_, ended_s), (begun_s, _) in pairwise(steps))
    return _rate(times_s, len(prompts) * new_tokens), pause_s


def _timed_steps(engine: TransformersEngine) -> list[tuple[float, float]]:
    """Begin and end of each step of the engine, as it makes them."""
    times_s: list[tuple[float, float]] = []
    step = engine._step

    def timed() -> bool:
        begun_s = time.perf_counter()
        has_worked = step()
        if has_worked:
            times_s.append((begun_s, time.perf_counter()))
        return has_worked

    engine._step = timed  # type: ignore[method-assign]
    return times_s


def _transformers(
    network: Any, prompts: list[list[int]], new_tokens: int, limits: GenerationLimits
) -> float:
    config = GenerationConfig(do_sample=False, max_new_tokens=new_tokens, eos_token_id=-1)
    batching = ContinuousBatchingConfig(
        page_size=PAGE_TOKENS,
        num_blocks=cache_shape(network.config, limits, network.dtype.itemsize).pages,
        max_batch_tokens=STEP_TOKENS,  # or it takes nine tenths of what memory is free
        max_requests_per_batch=len(prompts),
    )
    outputs = network.generate_batch(  # in a thread of its own, which sets its own mode
        inputs=prompts,
        generation_config=config,
        continuous_batching_config=batching,
        record_timestamps=True,
    )
    times_s = [at_s for each in outputs.values() for at_s in each.timestamps or ()]
    return _rate(times_s, len(prompts) * new_tokens)


def _rate(times_s: list[float], expected: int) -> float:
    """Tokens per second by the times of all tokens; raises RuntimeError if some are missing."""
    if len(times_s) != expected:
        raise RuntimeError(f"{len(times_s)} tokens were generated in place of {expected}")
    return (expected - 1) / (max(times_s) - min(times_s))
