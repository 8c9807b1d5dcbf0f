"""What an engine is to a pod: an adapter each, a file beside this, has all in which they differ.

The rest is the same for all: processes (`engine_processes.py`), loads (`process_engine.py`).
"""

from __future__ import annotations

import re
import shutil
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final

from registry.domain.model import EngineChoice, ModelName, ModelSpec
from runtime.engines.server_process import metric_sums

_SEQUENCES_FLAG: Final = "--max-num-seqs="


@dataclass(frozen=True, slots=True)
class Launch:
    """What the launcher imports once and runs; values are named `MODULE:ATTRIBUTES`."""

    server: str = ""
    """Module of the server; empty: the adapter's program is the server."""
    imports: tuple[str, ...] = ()
    version: str = ""
    architectures: str = ""
    """Of the names that it knows; empty: it says none."""
    can_sleep: str = ""


@dataclass(frozen=True, slots=True)
class LauncherFacts:
    """What an engine's environment tells once it has imported it."""

    version: str
    architectures: frozenset[str]
    can_sleep: bool
    import_s: float


@dataclass(frozen=True, slots=True)
class EngineStart:
    """One start of a model's engine."""

    spec: ModelSpec
    folder: Path
    """With the model's files."""
    cache: Path
    """For what the engine keeps between starts."""
    cache_bytes: int
    """Of key-value blocks."""
    device_share: float | None
    """Of the device's whole memory, for weights and all else; None: on a CPU."""
    threads: int
    """Of a CPU."""
    can_sleep: bool
    lora: bool
    """Whether the model has adapters."""


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """What an engine's metrics say."""

    running: int = 0
    waiting: int = 0
    """Requests for which it has no free blocks, or no place in its batch."""
    cache_used: float = 0.0
    """Share of its key-value blocks."""
    tokens: int = 0
    """Read and generated, in all."""
    steps: int = 0


def slots_of(load: EngineLoad, has_queued: bool, sequences: int) -> int:
    """Requests that an engine holds at once: those that run, and as many more as its blocks take.

    A further one is taken to need as many blocks as those that run have on average. None more while
    requests wait (`has_queued`) that its blocks do not take.
    """
    if has_queued:
        return max(1, load.running)
    if not load.running or not load.cache_used:
        return sequences
    free = (1.0 - load.cache_used) * load.running / load.cache_used
    return max(1, min(sequences, load.running + int(free)))


class EngineAdapter(ABC):
    """One engine."""

    title: ClassVar[str]
    """In messages."""
    choice: ClassVar[EngineChoice]
    launch: ClassVar[Launch] = Launch()
    metrics: ClassVar[Mapping[str, str]]
    """Those of /metrics, with the fields of `EngineLoad` to which they are added."""
    stages: ClassVar[Mapping[str, re.Pattern[str]]] = {}
    """Of a start, with seconds in the log."""
    error_line: ClassVar[re.Pattern[str]] = re.compile(r"^(?!.*Engine core).*Error: ")
    """The last such line of the log says why it ended; without one, the last line does."""
    refused: ClassVar[re.Pattern[str]] = re.compile("(?!)")
    """In its answers of 500 to requests that it cannot take."""
    sequences: ClassVar[int]
    """In a batch, if its arguments say nothing."""
    sleep: ClassVar[str] = ""
    """Route that puts it to sleep; empty: it ends instead. `wake` is its other half."""
    wake: ClassVar[str] = ""
    load_adapter: ClassVar[str] = ""
    """Route that loads a LoRA adapter; empty: it has none. `unload_adapter` is its other half."""
    unload_adapter: ClassVar[str] = ""
    process_bytes: ClassVar[int]
    """Assumed beside weights and cache, until it has been measured."""
    fills_cache: ClassVar[bool] = True
    """Whether the cache is within what is measured at its start."""

    def __init__(self, program: str) -> None:
        """`program`: the Python of its environment, or the server."""
        self.program = program

    @abstractmethod
    def suits(self, spec: ModelSpec, folder: Path) -> bool:
        """Whether a model is the engine's where nothing chooses one; `folder`: its small files."""

    @abstractmethod
    def refusal(self, folder: Path, facts: LauncherFacts) -> str:
        """Why the engine cannot run a model; empty: it can."""

    def max_sequences(self, spec: ModelSpec) -> int:
        given = [each for each in spec.engine_args if each.startswith(_SEQUENCES_FLAG)]
        value = given[-1][len(_SEQUENCES_FLAG) :] if given else ""
        return max(1, int(value)) if value.isdecimal() else self.sequences

    @abstractmethod
    def arguments(self, start: EngineStart, socket: str) -> list[str]:
        """Of a server that listens at a path; raises ModelInvalid."""

    def variables(self, start: EngineStart) -> Mapping[str, str]:
        return {}


def missing_programs(python: str, llama_server: str) -> list[str]:
    """What is wrong with the settings of engines' programs."""
    given = (("engine-python", "a Python with vLLM", python),
             ("llama-server", "llama.cpp's server", llama_server))  # fmt: skip
    return [
        f"--{flag} must be {what}, there is no program {program!r}"
        for flag, what, program in given
        if program and shutil.which(program) is None
    ]


def served_names(name: ModelName) -> tuple[str, ...]:
    """The model's names in bodies; the first is the one in responses."""
    long = (str(name), name.path_segment)
    return (name.name, *long) if name.namespace == "default" else long


def load_of(text: str, metrics: Mapping[str, str]) -> EngineLoad:
    """The load in an engine's metrics; what is missing is 0."""
    found: dict[str, float] = dict.fromkeys(metrics.values(), 0.0)
    for name, value in metric_sums(text).items():
        if name in metrics:
            found[metrics[name]] += value
    cache_used = found.pop("cache_used", 0.0)
    return EngineLoad(cache_used=cache_used, **{name: int(each) for name, each in found.items()})


def stages_of(
    log: str, total_s: float, patterns: Mapping[str, re.Pattern[str]]
) -> dict[str, float]:
    """Seconds of a start by stage, as the engine's log tells them; `process` is the rest."""
    stages = {stage: sum(map(float, each.findall(log))) for stage, each in patterns.items()}
    return {"process": max(0.0, total_s - sum(stages.values())), **stages}


MEMORY_WORDS: Final = ("out of memory", "OutOfMemory", "Available memory", "No available memory",
                       "Cannot allocate memory", "less than desired GPU memory",
                       "failed to allocate", "unable to allocate")  # fmt: skip
