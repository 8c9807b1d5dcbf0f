"""Steps of loading T5-small from local files, beside Liu 2025, table 3.1; imports torch.

CPU seconds of this process, which other work on the machine lengthens less than the clock's. What
the thesis downloads is downloaded before: see the benchmarks `storage` and `tiers`.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final, TypeVar

from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from benchmarks.tiers.models import WEIGHTS
from runtime.device.memory import CpuMemory
from runtime.engines.building import engine_of
from runtime.engines.engine import ModelFolder
from runtime.tasks.processors import load_processor
from runtime.weights.weight_source import DiskWeights

T = TypeVar("T")

_LIU: Final = {
    "network without weights": "T5ForConditionalGeneration class 0.06 s",
    "weights attached": "weight initialisation 0.23 s",
    "tokenizer": "instantiate tokenizer 0.13 s",
}
"""Table 3.1: the steps that are no downloads."""


@dataclass(frozen=True, slots=True)
class Step:
    """One step, of Pilotlight or of transformers."""

    name: str
    is_ours: bool
    seconds: tuple[float, ...]
    """CPU seconds of each repeat."""


def measure(folder: Path, *, repeats: int) -> list[Step]:
    """The steps of the model in `folder`; a first repeat, which imports modules, is left out."""
    found = [_ours(folder) for _ in range(repeats + 1)][1:]
    peers = [_transformers(folder) for _ in range(repeats + 1)][1:]
    return [
        Step(name, is_ours, tuple(run[name] for run in runs))
        for is_ours, runs in ((True, found), (False, peers))
        for name in runs[0]
    ]


def _ours(folder: Path) -> dict[str, float]:
    steps = _Steps()
    memory = CpuMemory()
    source = steps.run("files opened", lambda: DiskWeights([folder / WEIGHTS]))
    try:
        tensors = source.layout.tensors
        weights = steps.run("weights mapped", lambda: memory.put(source))
    finally:
        source.close()
    engine, model = engine_of(folder), ModelFolder(folder, None, tensors)
    skeleton = steps.run(
        "network without weights",
        lambda: engine.build_skeleton(model, key="", device=memory.device, threads=1),
    )
    steps.run("weights attached", lambda: skeleton.attach(weights.tensors))
    steps.run("tokenizer", lambda: load_processor(folder, None))
    return steps.seconds


def _transformers(folder: Path) -> dict[str, float]:
    steps = _Steps()
    steps.run("network", lambda: AutoModelForSeq2SeqLM.from_pretrained(folder))
    steps.run("tokenizer", lambda: AutoTokenizer.from_pretrained(folder))
    return steps.seconds


class _Steps:
    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def run(self, name: str, step: Callable[[], T]) -> T:
        started_s = time.process_time()
        result = step()
        self.seconds[name] = time.process_time() - started_s
        return result


def summary(steps: list[Step]) -> str:
    """Markdown: medians, and the step of table 3.1 that does the same."""
    lines = ["| loader | step | CPU ms | Liu 2025, table 3.1 |", "|---|---|---|---|"]
    for each in steps:
        loader = "Pilotlight" if each.is_ours else "transformers"
        liu = _LIU.get(each.name, "") if each.is_ours else ""
        lines.append(f"| {loader} | {each.name} | {1000 * median(each.seconds):.1f} | {liu} |")
    for is_ours, loader in ((True, "Pilotlight"), (False, "transformers")):
        runs = zip(*(each.seconds for each in steps if each.is_ours is is_ours), strict=True)
        total = 1000 * median([sum(run) for run in runs])
        liu = "all of it with files in the cache 0.4 s (3.2)"
        lines.append(f"| {loader} | **together** | {total:.1f} | {liu} |")
    return "\n".join(lines)
