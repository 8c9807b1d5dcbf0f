"""vLLM as the engine of a model: which models it takes, their loads and unloads in processes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from registry.domain.model import EngineChoice, ModelSpec, Task
from runtime.engines.engine import Engine, LoadedSkeleton, ModelFolder, Skeleton
from runtime.engines.engine_processes import EngineProcess, EngineProcesses
from runtime.engines.vllm_flags import GENERATING, served_names, server_arguments, server_variables
from runtime.errors import NeedsMissing
from runtime.storage.load_priority import LoadTicket

if TYPE_CHECKING:
    import torch

Result = TypeVar("Result")

PROCESS_BYTES: Final = 3 << 29
"""Assumed of an engine's processes beside weights and cache, until one has been measured."""


@dataclass(frozen=True, slots=True)
class EngineModel:
    """A model that an engine has loaded."""

    process: EngineProcess
    name: str
    """By which the engine knows it."""
    memory_bytes: int


class Vllm:
    """The models of a pod that vLLM runs. Belongs to the event loop, but for its constants."""

    def __init__(
        self,
        processes: EngineProcesses,
        default: EngineChoice,
        *,
        cache_bytes: int,
        device_bytes: int,
        threads: int,
    ) -> None:
        """What holds for every engine of the pod.

        Args:
            processes: the engines.
            default: for models that leave the choice to the pod.
            cache_bytes: of key-value blocks, for each.
            device_bytes: of the GPU; 0: a CPU.
            threads: of a CPU, for each.
        """
        self.processes = processes
        self._default = default
        self._cache_bytes, self._device_bytes = cache_bytes, device_bytes
        self._threads = threads
        self._loop = asyncio.get_running_loop()
        self._measured: dict[str, int] = {}
        self.has_adapters: Callable[[ModelSpec], bool] = lambda _spec: False

    async def takes(self, spec: ModelSpec, folder: Path) -> bool:
        """Whether vLLM runs the model with these small files.

        Raises NeedsMissing, EngineMissing.
        """
        choice = self._default if spec.engine is EngineChoice.AUTO else spec.engine
        if choice is EngineChoice.OWN or spec.base:
            return False
        architectures = _architectures(folder)
        if choice is EngineChoice.AUTO:
            is_text = spec.task in (None, Task.TEXT_GENERATION)
            if not is_text or not any(each.endswith(GENERATING) for each in architectures):
                return False
        known = (await self.processes.known_facts()).architectures
        if known.intersection(architectures):
            return True
        if choice is EngineChoice.AUTO or not architectures:
            return False
        raise NeedsMissing(
            f"vLLM does not know the architecture {', '.join(architectures)}: leave out the"
            " annotation pilotlight.io/engine"
        )

    def expected_bytes(self, key: str, weight_bytes: int) -> int:
        """Memory of a model with its engine: as measured, else an estimate."""
        estimate = weight_bytes + self._cache_bytes + PROCESS_BYTES
        return self._measured.get(key, estimate)

    def load(
        self, spec: ModelSpec, folder: Path, weight_bytes: int, ticket: LoadTicket
    ) -> EngineModel:
        """Start the model's engine; ends early with the ticket. Blocks, in a thread."""
        return self._on_loop(self._load(spec, folder, weight_bytes), ticket)

    async def _load(self, spec: ModelSpec, folder: Path, weight_bytes: int) -> EngineModel:
        processes, lora = self.processes, self.has_adapters(spec)
        can_sleep = (await processes.known_facts()).can_sleep

        share = self.expected_bytes(spec.key, weight_bytes) / max(1, self._device_bytes)

        def arguments(socket: str) -> list[str]:
            return server_arguments(
                spec,
                str(folder),
                socket,
                cache_bytes=self._cache_bytes,
                device_share=min(1.0, share) if self._device_bytes else None,
                can_sleep=can_sleep,
                lora=lora,
            )

        variables = server_variables(
            can_sleep=can_sleep, lora=lora, cache=str(processes.cache), threads=self._threads
        )
        process = await processes.start(spec.key, arguments, variables)
        measured = await asyncio.to_thread(processes.measure, process)
        self._measured[spec.key] = max(measured, weight_bytes + self._cache_bytes)
        return EngineModel(process, served_names(spec.name)[0], self._measured[spec.key])

    def _on_loop(self, work: Coroutine[Any, Any, Result], ticket: LoadTicket) -> Result:
        """The result of work on the event loop, cancelled with the ticket; blocks."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)

        def on_change() -> None:
            if ticket.is_cancelled:
                future.cancel()

        ticket.add_listener(on_change)
        try:
            on_change()
            return future.result()
        except asyncio.CancelledError:
            ticket.raise_if_cancelled()
            raise
        finally:
            ticket.remove_listener(on_change)


class VllmEngine(Engine):
    """The engine of one load."""

    name = "vllm"
    uses_device = False
    reads_files = True

    def __init__(self, vllm: Vllm, spec: ModelSpec, ticket: LoadTicket) -> None:
        self._vllm, self._spec, self._ticket = vllm, spec, ticket

    def skeleton_key(self, model: ModelFolder) -> str:
        return f"{self.name} {self._spec.key}"

    def build_skeleton(
        self, model: ModelFolder, *, key: str, device: torch.device, threads: int
    ) -> Skeleton:
        size_bytes = sum(file.size_bytes for file in model.tensors)
        return LoadedSkeleton(
            key,
            lambda _weights: self._vllm.load(self._spec, model.path, size_bytes, self._ticket),
            lambda loaded: self._vllm.processes.release(loaded.process.key),
            has_inferred=True,
        )

    def working_bytes(self, weight_bytes: int) -> int:
        return max(0, self._vllm.expected_bytes(self._spec.key, weight_bytes) - weight_bytes)


def _architectures(folder: Path) -> list[str]:
    """As config.json names them; none without a readable one."""
    try:
        found = json.loads((folder / "config.json").read_text()).get("architectures")
    except (OSError, ValueError, AttributeError):
        return []
    return [each for each in found if isinstance(each, str)] if isinstance(found, list) else []
