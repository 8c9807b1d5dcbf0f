"""vLLM as the engine of a model: which models it takes, their loads and unloads in processes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from common.http_connection import HttpError
from registry.domain.model import EngineChoice, ModelSpec, Task, Tier, name_of_key
from runtime.engines.engine import Engine, LoadedSkeleton, ModelFolder, Skeleton
from runtime.engines.engine_processes import EngineProcess, EngineProcesses
from runtime.engines.server_process import message_of
from runtime.engines.vllm_flags import GENERATING, served_names, server_arguments, server_variables
from runtime.errors import LoadFailed, NeedsMissing, ServerUnavailable, SlotsFull
from runtime.storage.load_priority import LoadTicket

if TYPE_CHECKING:
    import torch

Result = TypeVar("Result")

PROCESS_BYTES: Final = 3 << 29
"""Assumed of an engine's processes beside weights and cache, until one has been measured."""

ALIGNMENT_BYTES: Final = 1 << 20
"""More than what the layout of files adds to their sizes."""
ENGINE_SLOTS: Final = 256
"""Of a pod with engines: as many sequences as vLLM has in a batch by default."""
LOAD_ADAPTER: Final = "/v1/load_lora_adapter"
UNLOAD_ADAPTER: Final = "/v1/unload_lora_adapter"
LORA_S: Final = 60.0
"""Time limit of a load of an adapter."""
MAX_WAITING: Final = 8
"""Requests that may wait in an engine: its next batch. More wait in the gateway, by tenant."""


@dataclass(frozen=True, slots=True)
class EngineModel:
    """A model that an engine has loaded."""

    process: EngineProcess
    names: tuple[str, ...]
    """By which the engine knows it; the first is the one in responses."""
    memory_bytes: int


class Vllm:
    """The models of a pod that vLLM runs. Belongs to the event loop, but for its constants."""

    def __init__(
        self,
        processes: EngineProcesses,
        default: EngineChoice,
        *,
        cache_bytes: int,
        budget_bytes: int,
        device_bytes: int,
        host_bytes: Callable[[], int],
        threads: int,
    ) -> None:
        """What holds for every engine of the pod.

        Args:
            processes: the engines.
            default: for models that leave the choice to the pod.
            cache_bytes: of key-value blocks, for each.
            budget_bytes: of the pod's models together.
            device_bytes: of the GPU; 0: a CPU.
            host_bytes: the node's memory for models asleep.
            threads: of a CPU, for each.
        """
        self.processes = processes
        self._default = default
        self._cache_bytes, self._device_bytes = cache_bytes, device_bytes
        self._budget_bytes, self._host_bytes = budget_bytes, host_bytes
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
        if key in self._measured:
            return self._measured[key]
        least = weight_bytes + self._cache_bytes
        return max(least, min(least + PROCESS_BYTES, self._budget_bytes - ALIGNMENT_BYTES))

    def load(
        self, spec: ModelSpec, folder: Path, weight_bytes: int, ticket: LoadTicket
    ) -> EngineModel:
        """Start the model's engine; ends early with the ticket. Blocks, in a thread."""
        return self._on_loop(self._load(spec, folder, weight_bytes), ticket)

    async def _load(self, spec: ModelSpec, folder: Path, weight_bytes: int) -> EngineModel:
        process = await self.processes.wake(spec.key)
        if process is None:
            process = await self._start(spec, folder, weight_bytes)
        return EngineModel(process, served_names(spec.name), self._measured[spec.key])

    async def _start(self, spec: ModelSpec, folder: Path, weight_bytes: int) -> EngineProcess:
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
        process.takes_adapters = lora
        # At least what it may take by its flags: what others gave back meanwhile hides it.
        self._measured[spec.key] = max(process.memory_bytes, self._cache_bytes)
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

    def check_room(self, loaded: EngineModel) -> None:
        """Raises SlotsFull while requests wait in the engine, for free blocks of its cache."""
        load = loaded.process.load
        if load.waiting >= MAX_WAITING:
            raise SlotsFull(
                f"{load.waiting} requests wait in the engine of {name_of_key(loaded.process.key)},"
                f" whose cache is used to {load.cache_used:.0%}"
            )

    # Adapters, which share the engine of their base

    def load_adapter(
        self, spec: ModelSpec, base: EngineModel, folder: Path, ticket: LoadTicket
    ) -> EngineModel:
        """Have the base's engine read an adapter. Blocks; raises LoadFailed, ServerUnavailable."""
        name = served_names(spec.name)[0]
        document = {"lora_name": name, "lora_path": str(folder), "load_inplace": True}
        work = self.processes.call(base.process, "POST", LOAD_ADAPTER, document, timeout_s=LORA_S)
        try:
            answer = self._on_loop(work, ticket)
        except HttpError as error:
            raise ServerUnavailable(
                f"the engine of {spec.base} does not answer: {error}"
            ) from error
        if not answer.is_success:
            raise LoadFailed(f"vLLM refused the adapter {spec.name}: {message_of(answer)}")
        size_bytes = sum(each.stat().st_size for each in folder.iterdir())
        return EngineModel(base.process, (name,), size_bytes)

    def release_adapter(self, loaded: EngineModel) -> None:
        """Have the engine forget an adapter, in the background."""
        if not loaded.process.ended.is_set():
            self.processes.in_background(self._unload_adapter(loaded))

    async def _unload_adapter(self, loaded: EngineModel) -> None:
        document = {"lora_name": loaded.names[0]}
        with suppress(HttpError):  # it ends
            await self.processes.call(loaded.process, "POST", UNLOAD_ADAPTER, document)

    # Sleep

    def release(self, loaded: EngineModel) -> None:
        """Put a model's engine to sleep where it can and has room, else end it; does not block."""
        processes, key = self.processes, loaded.process.key
        if processes.by_key.get(key) is not loaded.process:
            return  # it has ended
        if (
            not loaded.process.is_outdated
            and self._can_sleep(key)
            and self._make_room(self._sleep_bytes(key))
        ):
            processes.sleep(key)
        else:
            processes.release(key)

    def _sleep_bytes(self, key: str) -> int:
        """The node's memory that a sleeping model takes, as measured, else an estimate."""
        return self.processes.slept_bytes.get(key) or self._measured.get(key, 0)

    def _can_sleep(self, key: str) -> bool:
        facts = self.processes.facts
        has_room = 0 < self._sleep_bytes(key) <= self._host_bytes()
        return has_room and facts is not None and facts.can_sleep

    def _make_room(self, needed_bytes: int) -> bool:
        """Whether the node's memory takes one more sleeper; ends others if it must."""
        free_bytes = self._host_bytes() - self.sleeping_bytes
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


class LoraEngine(Engine):
    """The engine of one load of an adapter."""

    name = "vllm adapter"
    uses_device = False
    reads_files = True

    def __init__(self, vllm: Vllm, spec: ModelSpec, base: EngineModel, ticket: LoadTicket) -> None:
        self._vllm, self._spec, self._base, self._ticket = vllm, spec, base, ticket

    def skeleton_key(self, model: ModelFolder) -> str:
        return f"{self.name} {self._spec.key}"

    def build_skeleton(
        self, model: ModelFolder, *, key: str, device: torch.device, threads: int
    ) -> Skeleton:
        return LoadedSkeleton(
            key,
            lambda _weights: self._vllm.load_adapter(
                self._spec, self._base, model.path, self._ticket
            ),
            self._vllm.release_adapter,
            has_inferred=True,
        )


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
            self._vllm.release,
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
