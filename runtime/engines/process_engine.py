"""Engines in processes of their own as those of models: which take which, loads, unloads, sleep."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from common.http_client import Response
from common.http_connection import HttpError
from registry.domain.model import EngineChoice, ModelSpec, Tier
from runtime.engines.engine import Engine, LoadedSkeleton, ModelFolder, Skeleton
from runtime.engines.engine_adapter import EngineAdapter, EngineStart, served_names
from runtime.engines.engine_processes import EngineProcess, EngineProcesses
from runtime.engines.llama_cpp_adapter import LlamaCppAdapter
from runtime.engines.server_process import message_of
from runtime.engines.vllm_adapter import VllmAdapter
from runtime.errors import LoadFailed, NeedsMissing, ServerUnavailable
from runtime.storage.load_priority import LoadTicket

if TYPE_CHECKING:
    import torch

Result = TypeVar("Result")

ALIGNMENT_BYTES: Final = 1 << 20
"""More than what the layout of files adds to their sizes."""
LORA_S: Final = 60.0
"""Time limit of a load of an adapter."""
PROGRAM_FLAGS: Final = {
    EngineChoice.VLLM: "--engine-python",
    EngineChoice.LLAMA_CPP: "--llama-server",
}


@dataclass(frozen=True, slots=True)
class EngineModel:
    """A model that an engine has loaded."""

    process: EngineProcess
    names: tuple[str, ...]
    """By which the engine knows it; the first is the one in responses."""
    memory_bytes: int


@dataclass(eq=False)
class ProcessEngines:
    """The models of a pod that such engines run. Belongs to the event loop."""

    processes: EngineProcesses
    adapters: Sequence[EngineAdapter]
    """Those that the pod has."""
    default: EngineChoice
    """For models that leave the choice to the pod."""
    cache_bytes: int
    """Of key-value blocks, for each engine."""
    budget_bytes: int
    """Of the pod's models together."""
    device_bytes: int
    """Of the GPU; 0: a CPU."""
    host_bytes: Callable[[], int]
    """Of the node's memory, for models asleep."""
    threads: int
    """Of a CPU, for each engine."""
    has_adapters: Callable[[ModelSpec], bool] = lambda _spec: False
    _measured: dict[str, int] = field(default_factory=dict)
    """Memory of models, by their keys."""
    _loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)

    async def find(self, spec: ModelSpec, folder: Path) -> EngineAdapter | None:
        """The engine of the model with these small files; None: the pod's own runs it.

        Raises NeedsMissing, EngineMissing.
        """
        choice = self.default if spec.engine is EngineChoice.AUTO else spec.engine
        if choice is EngineChoice.OWN or spec.base:
            return None
        is_auto = choice is EngineChoice.AUTO
        for adapter in self.adapters:
            if adapter.suits(spec, folder) if is_auto else adapter.choice is choice:
                facts = await self.processes.known_facts(adapter)
                problem = adapter.refusal(folder, facts)
                if not problem:
                    return adapter
                if spec.engine is not EngineChoice.AUTO:
                    raise NeedsMissing(f"{problem}: leave out the annotation pilotlight.io/engine")
        if spec.engine is not EngineChoice.AUTO:  # else it was found, or refused
            raise NeedsMissing(missing(spec.engine))
        return None

    def expected_bytes(self, adapter: EngineAdapter, key: str, weight_bytes: int) -> int:
        """Memory of a model with its engine: as measured, else an estimate."""
        if key in self._measured:
            return self._measured[key]
        least = weight_bytes + self.cache_bytes
        most = self.budget_bytes - ALIGNMENT_BYTES
        return max(least, min(least + adapter.process_bytes, most))

    def load(
        self,
        adapter: EngineAdapter,
        spec: ModelSpec,
        folder: Path,
        weight_bytes: int,
        ticket: LoadTicket,
    ) -> EngineModel:
        """Start or wake the model's engine; ends early with the ticket. Blocks, in a thread."""
        return self._on_loop(self._load(adapter, spec, folder, weight_bytes), ticket)

    async def _load(
        self, adapter: EngineAdapter, spec: ModelSpec, folder: Path, weight_bytes: int
    ) -> EngineModel:
        process = await self.processes.wake(spec.key)
        if process is None:
            process = await self._start(adapter, spec, folder, weight_bytes)
        return EngineModel(process, served_names(spec.name), self._measured[spec.key])

    async def _start(
        self, adapter: EngineAdapter, spec: ModelSpec, folder: Path, weight_bytes: int
    ) -> EngineProcess:
        share = self.expected_bytes(adapter, spec.key, weight_bytes) / max(1, self.device_bytes)
        start = EngineStart(
            spec,
            folder,
            self.processes.cache,
            self.cache_bytes,
            device_share=min(1.0, share) if self.device_bytes else None,
            threads=self.threads,
            can_sleep=(await self.processes.known_facts(adapter)).can_sleep,
            lora=self.has_adapters(spec),
        )
        process = await self.processes.start(adapter, start)
        # At least what it may take by its flags: what others gave back meanwhile hides it.
        least = 0 if adapter.fills_cache else self.cache_bytes
        self._measured[spec.key] = max(process.memory_bytes, least)
        return process

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

    # Adapters, which share the engine of their base

    def load_adapter(
        self, spec: ModelSpec, base: EngineModel, folder: Path, ticket: LoadTicket
    ) -> EngineModel:
        """Have the base's engine read an adapter. Blocks; raises LoadFailed, ServerUnavailable."""
        adapter, name = base.process.adapter, served_names(spec.name)[0]
        if not (path := adapter.load_adapter):
            raise NeedsMissing(f"{adapter.title}, which runs {spec.base}, loads no adapters")
        size_bytes = sum(each.stat().st_size for each in folder.iterdir())
        loaded = EngineModel(base.process, (name,), size_bytes)
        document = {"lora_name": name, "lora_path": str(folder), "load_inplace": True}

        async def load() -> Response:
            await self.processes.wait_freed()  # it may be unloaded just now
            base.process.adapters[name] = loaded
            return await self.processes.call(base.process, "POST", path, document, timeout_s=LORA_S)

        try:
            answer = self._on_loop(load(), ticket)
        except HttpError as error:
            text = f"the engine of {spec.base} does not answer: {error}"
            raise ServerUnavailable(text) from error
        if not answer.is_success:
            text = message_of(answer)
            raise LoadFailed(f"{adapter.title} refused the adapter {spec.name}: {text}")
        return loaded

    def release_adapter(self, loaded: EngineModel) -> None:
        """Have the engine forget an adapter, in the background; not a later one of its name."""
        if loaded.process.adapters.get(loaded.names[0]) is loaded:
            self.processes.in_background(self._unload_adapter(loaded))

    async def _unload_adapter(self, loaded: EngineModel) -> None:
        path, document = loaded.process.adapter.unload_adapter, {"lora_name": loaded.names[0]}
        with suppress(HttpError):  # it ends
            await self.processes.call(loaded.process, "POST", path, document)

    # Sleep

    def release(self, loaded: EngineModel) -> None:
        """Put a model's engine to sleep where it can and has room, else end it; does not block."""
        processes, process = self.processes, loaded.process
        if processes.by_key.get(process.key) is not process:
            return  # it has ended
        may_sleep = self._can_sleep(process.key) and not process.is_outdated
        if may_sleep and self._make_room(self._sleep_bytes(process.key)):
            processes.sleep(process)
        else:
            processes.release(process.key)

    def _sleep_bytes(self, key: str) -> int:
        """The node's memory that a sleeping model takes, as measured, else an estimate."""
        return self.processes.slept_bytes.get(key) or self._measured.get(key, 0)

    def _can_sleep(self, key: str) -> bool:
        engine = self.processes.by_key.get(key)
        has_room = 0 < self._sleep_bytes(key) <= self.host_bytes()
        return has_room and engine is not None and engine.start.can_sleep

    def _make_room(self, needed_bytes: int) -> bool:
        """Whether the node's memory takes one more sleeper; ends others if it must."""
        free_bytes = self.host_bytes() - self.sleeping_bytes
        for sleeper in self.processes.sleepers():
            if free_bytes >= needed_bytes:
                break
            free_bytes += sleeper.host_bytes
            self.processes.release(sleeper.key)
        return free_bytes >= needed_bytes

    @property
    def sleeping_bytes(self) -> int:
        """The node's memory of all models asleep."""
        return sum(each.host_bytes for each in self.processes.sleepers())

    def asleep_bytes(self, key: str) -> int:
        """The node's memory that a sleeping model has; 0: it does not sleep."""
        return next((e.host_bytes for e in self.processes.sleepers() if e.key == key), 0)

    async def has_fallen_asleep(self, key: str) -> bool:
        """Whether the model sleeps, once those that were to sleep or end have done so."""
        await self.processes.wait_freed()
        return self.asleep_bytes(key) > 0

    def remainder_bytes(self, but: str = "") -> int:
        """Memory of the device that models asleep keep, all but one."""
        return sum(e.remainder_bytes for e in self.processes.sleepers() if e.key != but)

    def end_sleepers(self, but: str) -> None:
        """End models asleep, all but one, for the device's memory that they keep."""
        for each in self.processes.sleepers():
            if each.remainder_bytes and each.key != but:
                self.processes.release(each.key)

    def tier_after_eviction(self, key: str, *, is_on_disk: bool) -> Tier:
        if self._can_sleep(key):
            return Tier.HOST
        return Tier.DISK if is_on_disk else Tier.REMOTE


class ProcessEngine(Engine):
    """The engine of one load."""

    uses_device = False
    reads_files = True

    def __init__(
        self,
        engines: ProcessEngines,
        adapter: EngineAdapter,
        spec: ModelSpec,
        ticket: LoadTicket,
        base: EngineModel | None = None,
    ) -> None:
        """`base`: of a LoRA adapter."""
        self.name = str(adapter.choice)
        self._engines, self._adapter, self._base = engines, adapter, base
        self._spec, self._ticket = spec, ticket

    def skeleton_key(self, model: ModelFolder) -> str:
        return f"{self.name} {self._spec.key}"

    def build_skeleton(
        self, model: ModelFolder, *, key: str, device: torch.device, threads: int
    ) -> Skeleton:
        engines, size_bytes = self._engines, sum(file.size_bytes for file in model.tensors)

        def load(_weights: object) -> EngineModel:
            if self._base is not None:
                return engines.load_adapter(self._spec, self._base, model.path, self._ticket)
            return engines.load(self._adapter, self._spec, model.path, size_bytes, self._ticket)

        release = engines.release if self._base is None else engines.release_adapter
        return LoadedSkeleton(key, load, release, has_inferred=True)

    def working_bytes(self, weight_bytes: int) -> int:
        if self._base is not None:
            return 0
        expected_bytes = self._engines.expected_bytes(self._adapter, self._spec.key, weight_bytes)
        return max(0, expected_bytes - weight_bytes)


def adapters_of(python: str, llama_server: str) -> list[EngineAdapter]:
    """The engines of a pod with these settings."""
    llama_cpp = [LlamaCppAdapter(llama_server)] if llama_server else []
    return [*llama_cpp, *([VllmAdapter(python)] if python else [])]


def missing(choice: EngineChoice) -> str:
    """What a pod without this engine answers."""
    return (
        f"pilotlight.io/engine is {choice}, which this pool's pods do not have: give them"
        f" {PROGRAM_FLAGS[choice]}, or take a pool that has it"
    )
