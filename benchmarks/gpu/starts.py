"""Cold starts of T5 on the device, to the first token, against the usual ways on the same files."""

import gc
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import load_file

from benchmarks.gpu.serving import infer
from benchmarks.quantiles import rotated, spread
from benchmarks.tiers.contestants import from_pretrained, network_of
from benchmarks.tiers.models import WEIGHTS, read_file
from benchmarks.tiers.ours import filled_skeleton, host_image
from runtime.device.staged_memory import StagedMemory
from runtime.engines.engine import Skeletons
from runtime.weights.weight_source import DiskWeights, WeightSource

FILES = "files in memory"


@dataclass(frozen=True, slots=True)
class DeviceStart:
    """One start."""

    model: str
    way: str
    load_s: float
    first_s: float
    """The first token after it, which waits for whatever the load left under way."""


def measure_starts(
    folders: Sequence[Path], memory: StagedMemory, *, repeats: int
) -> list[DeviceStart]:
    """All ways in turn, after one of each that is not counted; files are in the kernel's memory."""
    results = []
    for folder in folders:
        with _ways(folder, memory) as ways:
            for number in range(repeats + 1):
                for way in rotated(list(ways), number):
                    read_file(folder / WEIGHTS)
                    start = _time(folder.name, way, ways[way], memory)
                    if number:
                        results.append(start)
    return results


def _time(model: str, way: str, load: Callable[[], Any], memory: StagedMemory) -> DeviceStart:
    gc.collect()
    begun_s = time.perf_counter()
    network = load()
    load_s = time.perf_counter() - begun_s
    return DeviceStart(model, way, load_s, infer(network, memory.device))


@contextmanager
def _ways(folder: Path, memory: StagedMemory) -> Iterator[Mapping[str, Callable[[], Any]]]:
    path, device = folder / WEIGHTS, memory.device

    def ours(opened: Callable[[], WeightSource]) -> Any:
        return filled_skeleton(folder, opened(), Skeletons(), memory).network

    with host_image(folder) as image:
        ways: dict[str, Callable[[], Any]] = {
            f"Pilotlight, {FILES}": lambda: ours(lambda: DiskWeights([path])),
            f"from_pretrained and to(), {FILES}": lambda: from_pretrained(folder).to(device),
            f"safetensors load_file on the device, assigned, {FILES}": lambda: _assigned(
                folder, load_file(path, device=str(device)), device
            ),
        }
        if image is not None:
            ways["Pilotlight, host"] = lambda: ours(image)
        yield ways


def _assigned(folder: Path, tensors: dict[str, Any], device: Any) -> Any:
    return network_of(folder, tensors).to(device)


def start_table(starts: Sequence[DeviceStart]) -> str:
    """A Markdown table: medians of milliseconds, with the spread."""
    rows = ["| model | way | load, ms | load and first token, ms |", "|---|---|---|---|"]
    for model, way in dict.fromkeys((each.model, each.way) for each in starts):
        mine = [each for each in starts if (each.model, each.way) == (model, way)]
        load = spread([each.load_s * 1000 for each in mine])
        both = spread([(each.load_s + each.first_s) * 1000 for each in mine])
        rows.append(
            f"| {model} | {way} | {load.median:.1f} |"
            f" {both.median:.1f} ({both.lowest:.1f} to {both.highest:.1f}) |"
        )
    return "\n".join(rows)
