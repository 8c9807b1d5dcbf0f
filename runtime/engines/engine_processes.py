"""Engines in processes of their own, one per model, from start to sleep and end.

Each listens on a Unix socket in a folder of this pod's user alone, so that no client reaches the
calls with which it is put to sleep. All belong to the pod's event loop.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import signal
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any, Final

import orjson

from common.http_client import HttpClient, Response
from common.http_connection import HttpError
from common.process import socket_folder
from runtime.engines.engine_adapter import (
    MEMORY_WORDS,
    EngineAdapter,
    EngineLoad,
    EngineStart,
    LauncherFacts,
    load_of,
    slots_of,
    stages_of,
)
from runtime.engines.launcher_process import STOP_GRACE_S, Launcher, end_of, last_error
from runtime.engines.server_process import message_of, session_bytes
from runtime.errors import DeviceFull, LoadFailed
from runtime.metrics import ENGINE_START_SECONDS

logger = logging.getLogger(__name__)

POLL_INTERVAL_S: Final = 0.05
CALL_TIMEOUT_S: Final = 10.0
WATCH_INTERVAL_S: Final = 0.5
WATCH_TIMEOUT_S: Final = 5.0
HEADERS: Final = {"host": "engine", "content-type": "application/json"}
END_TIMEOUT_S: Final = 1.0
"""From a lost connection to the end of its process."""


class EngineState(StrEnum):
    STARTING = "starting"
    AWAKE = "awake"
    ASLEEP = "asleep"


@dataclass(eq=False, slots=True)
class EngineProcess:
    """One engine. Mutable: owned by the event loop."""

    adapter: EngineAdapter
    start: EngineStart
    name: str
    """Of the process, and in the names of its files."""
    socket: Path
    log: Path
    slots: int
    """Requests that it holds at once."""
    state: EngineState = EngineState.STARTING
    pid: int = 0
    is_outdated: bool = False
    """Whether its next start is another one, so that it does not sleep."""
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    memory_bytes: int = 0
    """Of the device, when it had started: on a CPU, of its processes."""
    host_bytes: int = 0
    """Of the node's memory, asleep."""
    remainder_bytes: int = 0
    """Of the device, asleep."""
    load: EngineLoad = field(default_factory=EngineLoad)
    progress_s: float = 0.0
    """When its tokens last changed, or it had nothing to do."""
    adapters: dict[str, object] = field(default_factory=dict)
    """By name, as the latest load has them: a generation replaces the one before."""

    @property
    def key(self) -> str:
        """Of the model."""
        return self.start.spec.key


@dataclass(eq=False)
class EngineProcesses:
    """The engines of a pod, and the launchers that fork them."""

    adapters: Sequence[EngineAdapter]
    """Those that the pod has."""
    tasks: asyncio.TaskGroup
    """Of the pod."""
    cache: Path
    """For what engines keep between starts."""
    log_file: Path | None
    """Of the pod; its engines' lie beside it."""
    start_timeout_s: float
    """Of a start, and of a wake."""
    hang_s: float
    """Without a token for its requests, after which an engine is killed."""
    free_bytes: Callable[[], int] | None = None
    """Of the GPU; None: engines run on the CPU."""
    on_lost: Callable[[str], None] = lambda _key: None
    """Called with the key of a model whose engine has ended by itself."""
    on_moved: Callable[[str], None] = lambda _key: None
    """Called with the key of a model whose engine is asleep, or no longer."""
    on_slots: Callable[[int], None] = lambda _slots: None
    """Called with how many requests all engines hold, whenever it may have changed."""

    def __post_init__(self) -> None:
        self.slept_bytes: dict[str, int] = {}
        """Of the node's memory, of models that have slept."""
        self.by_key: dict[str, EngineProcess] = {}
        self.client = HttpClient(resends=False)
        self._by_name: dict[str, EngineProcess] = {}
        self._numbers = itertools.count(1)
        self._stopping: set[asyncio.Task[None]] = set()
        self._closing = ExitStack()
        self._folder = self._closing.enter_context(socket_folder())
        self._launchers = {each: self._launcher(each) for each in self.adapters}

    def _launcher(self, adapter: EngineAdapter) -> Launcher:
        log, on_end = self._log_of(f"{adapter.choice}-launcher"), partial(self._all_ended, adapter)
        return Launcher(adapter, log, self._spawned, self._ended, on_end)

    async def run(self) -> None:
        """Until cancelled, which ends all engines."""
        self.tasks.create_task(self._watch())
        try:
            async with asyncio.TaskGroup() as tasks:
                for each in self._launchers.values():
                    tasks.create_task(each.process.run())
        finally:
            self.client.close()
            self._closing.close()

    async def known_facts(self, adapter: EngineAdapter) -> LauncherFacts:
        """Raises EngineMissing."""
        return await self._launchers[adapter].known_facts()

    def _log_of(self, name: str) -> Path:
        if self.log_file is None:
            return self._folder / f"{name}.log"
        return self.log_file.with_name(f"{self.log_file.stem}-{name}.log")

    # What launchers tell

    def _spawned(self, name: str, pid: int) -> None:
        if (engine := self._by_name.get(name)) is not None:
            engine.pid = pid

    def _all_ended(self, adapter: EngineAdapter) -> None:
        for each in [each for each in self._by_name.values() if each.adapter is adapter]:
            if each.pid:
                with suppress(ProcessLookupError):  # what it has started, too
                    os.killpg(each.pid, signal.SIGKILL)
            self._ended(each.name)

    def _ended(self, name: str) -> None:
        if (engine := self._by_name.pop(name, None)) is None:
            return
        engine.ended.set()
        engine.socket.unlink(missing_ok=True)
        if self.by_key.get(engine.key) is engine:
            del self.by_key[engine.key]
            if engine.state is EngineState.AWAKE:
                reason = last_error(engine.log, engine.adapter)
                logger.warning("engine ended", extra={"key": engine.key, "reason": reason})
                self.on_lost(engine.key)
            self.on_moved(engine.key)

    def _end(self, engine: EngineProcess, grace_s: float = 0.0) -> None:
        stop = {"stop": engine.name, "grace_s": grace_s}
        self._launchers[engine.adapter].process.send(stop)

    # A start, and the end

    async def start(self, adapter: EngineAdapter, start: EngineStart) -> EngineProcess:
        """An engine that answers; raises LoadFailed, DeviceFull, EngineMissing."""
        await self.wait_freed()
        await self.known_facts(adapter)  # the launcher may have ended since
        name, key = f"engine-{next(self._numbers)}", start.spec.key
        path, log = self._folder / f"{name}.sock", self._log_of(name)
        engine = EngineProcess(adapter, start, name, path, log, adapter.max_sequences(start.spec))
        fields = {
            "name": name,
            "arguments": adapter.arguments(start, str(path)),
            "environment": dict(adapter.variables(start)),
            "log_file": str(log),
        }
        log.unlink(missing_ok=True)
        self.by_key[key] = self._by_name[name] = engine
        free_bytes = self.free_bytes() if self.free_bytes else 0
        begun_s = time.monotonic()
        self._launchers[adapter].process.send({"spawn": fields})
        try:
            async with asyncio.timeout(self.start_timeout_s):
                await self._wait_answering(engine)
        except BaseException as error:
            if self.by_key.get(key) is engine:
                del self.by_key[key]
            if not engine.ended.is_set():
                self._end(engine)
            if isinstance(error, TimeoutError):
                raise LoadFailed(
                    f"{adapter.title} did not start {key} within {self.start_timeout_s:g} s: {log}"
                ) from error
            raise
        engine.state, engine.progress_s = EngineState.AWAKE, time.monotonic()
        started = await asyncio.to_thread(end_of, log)
        stages_s = stages_of(started, engine.progress_s - begun_s, adapter.stages)
        if self.free_bytes:
            engine.memory_bytes = max(0, free_bytes - self.free_bytes())
        else:
            engine.memory_bytes = await asyncio.to_thread(session_bytes, engine.pid)
        for stage, seconds in stages_s.items():
            ENGINE_START_SECONDS.labels(stage=stage).observe(seconds)
        rounded = {stage: round(seconds, 2) for stage, seconds in stages_s.items()}
        logger.info("engine started", extra={"key": key, "stages_s": rounded})
        self._publish_slots()
        return engine

    async def wait_freed(self) -> None:
        """Wait for engines that end or fall asleep: they have the memory that others need."""
        if self._stopping:
            await asyncio.wait(tuple(self._stopping), timeout=2 * STOP_GRACE_S)

    # Sleep

    def sleep(self, engine: EngineProcess) -> None:
        """Put an engine to sleep, in the background; one that refuses is stopped."""
        self.by_key[engine.key] = self.by_key.pop(engine.key)  # the last of the sleepers
        engine.state = EngineState.ASLEEP
        self.in_background(self._sleep(engine))

    async def _sleep(self, engine: EngineProcess) -> None:
        awake_bytes = self.free_bytes() if self.free_bytes else 0
        if problem := await self._changed(engine, engine.adapter.sleep):
            logger.warning("engine does not sleep", extra={"key": engine.key, "reason": problem})
            self.release(engine.key)
            return
        engine.host_bytes = await asyncio.to_thread(session_bytes, engine.pid)
        self.slept_bytes[engine.key] = engine.host_bytes
        if self.free_bytes:
            freed_bytes = self.free_bytes() - awake_bytes
            engine.remainder_bytes = max(0, engine.memory_bytes - freed_bytes)
        logger.info("engine asleep", extra={"key": engine.key, "host_bytes": engine.host_bytes})
        self.on_moved(engine.key)

    async def wake(self, key: str) -> EngineProcess | None:
        """The engine, awake; None if it has not slept, or cannot wake: it is stopped then."""
        await self.wait_freed()
        engine = self.by_key.get(key)
        if engine is None or engine.state is not EngineState.ASLEEP:
            return None
        begun_s = time.monotonic()
        if problem := await self._changed(engine, engine.adapter.wake):
            logger.warning("engine does not wake", extra={"key": key, "reason": problem})
            self.release(key)
            await self.wait_freed()
            return None
        engine.state, engine.progress_s = EngineState.AWAKE, time.monotonic()
        engine.remainder_bytes = 0
        ENGINE_START_SECONDS.labels(stage="wake").observe(engine.progress_s - begun_s)
        return engine

    async def _changed(self, engine: EngineProcess, path: str) -> str:
        """Why an engine has not fallen asleep, or not woken up; empty: it has."""
        try:
            answer = await self.call(engine, "POST", path, timeout_s=self.start_timeout_s)
        except HttpError as error:
            return repr(error)
        return "" if answer.is_success else message_of(answer)

    def sleepers(self) -> list[EngineProcess]:
        """Those asleep, the one that has slept longest first."""
        return self._in_state(EngineState.ASLEEP)

    def _in_state(self, state: EngineState) -> list[EngineProcess]:
        return [each for each in self.by_key.values() if each.state is state]

    # The watch

    async def _watch(self) -> None:
        """Keep the load of the engines, and kill those that hang, until cancelled."""
        while True:
            await asyncio.gather(*map(self._poll, self._in_state(EngineState.AWAKE)))
            self._publish_slots()
            await asyncio.sleep(WATCH_INTERVAL_S)

    def _publish_slots(self) -> None:
        self.on_slots(sum(each.slots for each in self._in_state(EngineState.AWAKE)))

    async def _poll(self, engine: EngineProcess) -> None:
        before = engine.load
        try:
            answer = await self.call(engine, "GET", "/metrics", timeout_s=WATCH_TIMEOUT_S)
            load = engine.load = load_of(answer.text, engine.adapter.metrics)
            has_queued = bool(before.waiting and load.waiting)
            sequences = engine.adapter.max_sequences(engine.start.spec)
            engine.slots = slots_of(load, has_queued, sequences)
            has_work = load.running + load.waiting > 0
            if not has_work or (load.tokens, load.steps) != (before.tokens, before.steps):
                engine.progress_s = time.monotonic()
        except HttpError as error:  # the launcher tells of one that has ended
            logger.info("engine not seen", extra={"key": engine.key, "error": error})
        still_s = time.monotonic() - engine.progress_s
        if still_s > self.hang_s and engine.state is EngineState.AWAKE:
            logger.error("engine hangs, it is killed", extra={"key": engine.key})
            self._end(engine)

    async def _wait_answering(self, engine: EngineProcess) -> None:
        while not engine.ended.is_set():
            with suppress(HttpError):
                if (await self.call(engine, "GET", "/health", timeout_s=2.0)).is_success:
                    return
            await asyncio.sleep(POLL_INTERVAL_S)
        reason = last_error(engine.log, engine.adapter)
        kind = DeviceFull if any(word in reason for word in MEMORY_WORDS) else LoadFailed
        raise kind(f"{engine.adapter.title} did not start {engine.key}: {reason}")

    def release(self, key: str) -> None:
        """End a model's engine, in the background."""
        engine = self.by_key.pop(key, None)
        if engine is not None:
            self.in_background(self._stop(engine))
            self.on_moved(key)

    def in_background(self, work: Coroutine[Any, Any, None]) -> None:
        """What frees memory; starts and wakes wait for it."""
        task = self.tasks.create_task(work)
        self._stopping.add(task)
        task.add_done_callback(self._stopping.discard)

    async def _stop(self, engine: EngineProcess) -> None:
        self._end(engine, STOP_GRACE_S)
        await engine.ended.wait()

    async def wait_ended(self, engine: EngineProcess) -> None:
        """Return once an engine that lost a connection has ended: its model is gone then."""
        with suppress(TimeoutError):
            async with asyncio.timeout(END_TIMEOUT_S):
                await engine.ended.wait()

    # Calls

    async def call(
        self,
        engine: EngineProcess,
        method: str,
        path: str,
        document: object = None,
        *,
        timeout_s: float | None = CALL_TIMEOUT_S,
    ) -> Response:
        """One exchange; raises HttpError."""
        body = b"" if document is None else orjson.dumps(document)
        return await self.client.request(
            method, f"unix:{engine.socket}", path, HEADERS, body, timeout_s=timeout_s
        )
