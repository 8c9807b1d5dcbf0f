"""One of the pods of `sharing`: a model behind a device worker, and its clients, in one process.

`python -m benchmarks.gpu.sharing_pod OPTIONS` binds itself to its share as a pod does. It sends a
message when the model is warm, and then one for each burst that its parent asks for.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from common.frames import frame, parent_socket, received
from runtime.pod_process import bind_to_share

if TYPE_CHECKING:
    from runtime.loading.model_store import ServedModel

_WARM_UP_S = 0.5


@dataclass(frozen=True, slots=True)
class PodOptions:
    """What a process serves, and with what part of the device."""

    folder: str
    device: str
    clients: int
    share_pct: float = 0.0
    """By MPS; 0: all."""
    cores: str = ""
    """Of a CPU in place of a GPU; empty: all."""


@dataclass(frozen=True, slots=True)
class WarmPod:
    """What the process says when its model is warm."""

    cores: int
    """Multiprocessors of the GPU, or cores of a CPU, that the process sees."""


@dataclass(frozen=True, slots=True)
class BurstRequest:
    """All pods of a way begin at the same time of CLOCK_MONOTONIC."""

    begin_s: float
    seconds: float


@dataclass(frozen=True, slots=True)
class PodBurst:
    """What one pod did in a burst."""

    inferences: int
    seconds: float
    p50_s: float
    p95_s: float
    p99_s: float


def main() -> None:
    connection = parent_socket()
    options = PodOptions(**json.loads(sys.argv[1]))
    bind_to_share(gpu="", cores=options.cores, share_pct=options.share_pct)
    import torch  # reads the number of cores

    from benchmarks.gpu.batches import served_model
    from runtime.device.accelerator import find_accelerator, mps_share
    from runtime.device.memory import open_device

    torch.set_num_threads(1)
    memory = open_device(options.device, mps_share(os.environ))
    try:
        with served_model(Path(options.folder), memory, clients=options.clients) as model:
            _burst(model, options.clients, _WARM_UP_S)
            warm = WarmPod(find_accelerator(memory.device, os.environ).cores)
            connection.sendall(frame(asdict(warm)))
            for head, _ in received(connection):
                asked = BurstRequest(**head)
                time.sleep(max(0.0, asked.begin_s - time.monotonic()))
                burst = _burst(model, options.clients, asked.seconds)
                connection.sendall(frame(asdict(burst)))
    finally:
        memory.close()


def _burst(model: ServedModel, clients: int, seconds: float) -> PodBurst:
    from benchmarks.gpu.batches import client_latencies
    from benchmarks.quantiles import quantile

    begun_s = time.perf_counter()
    latencies_s = asyncio.run(client_latencies(model, clients=clients, seconds=seconds))
    took_s = time.perf_counter() - begun_s
    p50_s, p95_s, p99_s = (quantile(latencies_s, share) for share in (0.5, 0.95, 0.99))
    return PodBurst(len(latencies_s), took_s, p50_s, p95_s, p99_s)


if __name__ == "__main__":
    main()
