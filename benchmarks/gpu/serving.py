"""How long an inference takes while another model is brought to the device, and alone."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

    from runtime.device.staged_memory import StagedMemory
    from runtime.weights.weight_source import WeightSource


@dataclass(frozen=True, slots=True)
class Serving:
    """Seconds of each inference."""

    alone_s: list[float]
    beside_s: list[float]
    loads: int
    """That ended while inferences were timed."""


def measure_serving(
    network: Any,
    memory: StagedMemory,
    opened: Callable[[], WeightSource],
    *,
    repeats: int,
    inferences: int,
) -> Serving:
    """In turn alone and beside loads that follow one another without a pause."""
    alone_s: list[float] = []
    beside_s: list[float] = []
    loads = 0
    infer(network, memory.device)  # what happens only once
    for _ in range(repeats):
        alone_s += [infer(network, memory.device) for _ in range(inferences)]
        with ThreadPoolExecutor(1) as threads:
            begun, stop = threading.Event(), threading.Event()
            loading = threads.submit(_load_until, stop, begun, memory, opened)
            try:
                begun.wait()
                beside_s += [infer(network, memory.device) for _ in range(inferences)]
            finally:
                stop.set()
            loads += loading.result()
    return Serving(alone_s, beside_s, loads)


def infer(network: Any, device: torch.device) -> float:
    """Seconds of one generated token, its result on the host."""
    begun_s = time.perf_counter()
    with torch.inference_mode():
        tokens = torch.tensor([[5, 6, 7, 1]], device=device)
        network.generate(input_ids=tokens, min_new_tokens=1, max_new_tokens=1).cpu()
    return time.perf_counter() - begun_s


def _load_until(
    stop: threading.Event,
    begun: threading.Event,
    memory: StagedMemory,
    opened: Callable[[], WeightSource],
) -> int:
    loads = 0
    try:
        while not stop.is_set():
            source = opened()
            begun.set()
            memory.put(source).release()
            source.close()
            loads += 1
    finally:
        begun.set()  # an error is raised to who waits for the loads, not waited for
    return loads
