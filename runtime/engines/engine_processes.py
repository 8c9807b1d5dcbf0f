"""Engines in processes of their own: vLLM's servers, one per model, from start to sleep and end.

Each listens on a Unix socket in a folder of this pod's user alone, so that no client reaches the
calls with which it is put to sleep. All belong to the pod's event loop.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

import orjson

from common.child_process import Command, KeptProcess
from common.http_client import HttpClient, Response
from common.http_connection import HttpError
from runtime.engines.server_process import METRIC_SAMPLE, message_of, server_environment
from runtime.errors import DeviceFull, EngineMissing, LoadFailed
from runtime.metrics import ENGINE_START_SECONDS

logger = logging.getLogger(__name__)

POLL_INTERVAL_S: Final = 0.05
CALL_TIMEOUT_S: Final = 10.0
IMPORT_TIMEOUT_S: Final = 300.0
"""Until the launcher has imported vLLM."""
STOP_GRACE_S: Final = 5.0
WATCH_INTERVAL_S: Final = 0.5
WATCH_TIMEOUT_S: Final = 5.0
SLEEP: Final = "/sleep?level=1"
"""Weights go to the node's memory, the key-value cache is dropped."""
WAKE: Final = "/wake_up"
END_TIMEOUT_S: Final = 1.0
"""From a lost connection to the end of its process."""
LAUNCHER_NAME: Final = "engine-launcher"
LAUNCHER: Final = Path(__file__).with_name("vllm_launcher.py")
_STAGES: Final = {
    "weights": re.compile(r"Loading weights took ([\d.]+) s"),
    "warm-up": re.compile(r"init engine \(.*\) took ([\d.]+) s"),
}
_LOG_BYTES: Final = 64 * 1024
_MEMORY_WORDS: Final = ("out of memory", "OutOfMemory", "Available memory", "No available memory",
                        "Cannot allocate memory", "less than desired GPU memory")  # fmt: skip


@dataclass(frozen=True, slots=True)
class LauncherFacts:
    """What vLLM's environment tells once it has imported it."""

    version: str
    architectures: frozenset[str]
    can_sleep: bool
    import_s: float


class EngineState(StrEnum):
    STARTING = "starting"
    AWAKE = "awake"
    ASLEEP = "asleep"


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


@dataclass(eq=False, slots=True)
class EngineProcess:
    """One engine. Mutable: owned by the event loop."""

    key: str
    """Of the model."""
    name: str
    """Of the process, and in the names of its files."""
    address: str
    log: Path
    state: EngineState = EngineState.STARTING
    pid: int = 0
    takes_adapters: bool = False
    is_outdated: bool = False
    """Whether its next start is another one, so that it does not sleep."""
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    stages_s: dict[str, float] = field(default_factory=dict)
    """Seconds of its start, by stage."""
    memory_bytes: int = 0
    """Of the device, when it had started: on a CPU, of its processes."""
    host_bytes: int = 0
    """Of the node's memory, asleep."""
    remainder_bytes: int = 0
    """Of the device, asleep."""
    load: EngineLoad = field(default_factory=lambda: EngineLoad())
    progress_s: float = 0.0
    """When its tokens last changed, or it had nothing to do."""


class EngineProcesses:
    """The engines of a pod, and the launcher that forks them."""

    def __init__(
        self,
        python: str,
        *,
        cache: Path,
        log_file: Path | None,
        start_timeout_s: float,
        hang_s: float,
        tasks: asyncio.TaskGroup,
        free_bytes: Callable[[], int] | None = None,
    ) -> None:
        """What all engines have in common.

        Args:
            python: of the environment with vLLM.
            cache: for what vLLM keeps between starts.
            log_file: of the pod; its engines' lie beside it.
            start_timeout_s: of a start, and of a wake.
            hang_s: without a token for its requests, after which an engine is killed.
            tasks: of the pod.
            free_bytes: of the GPU; None: engines run on the CPU.
        """
        self._tasks, self._hang_s, self._free_bytes = tasks, hang_s, free_bytes
        self.folder = Path(tempfile.mkdtemp(prefix="pilotlight-engines-"))
        self.cache = cache
        self.facts: LauncherFacts | None = None
        self.on_lost: Callable[[str], None] = lambda _key: None
        """Called with the key of a model whose engine has ended by itself."""
        self.on_moved: Callable[[str], None] = lambda _key: None
        """Called with the key of a model whose engine is asleep, or no longer."""
        self.slept_bytes: dict[str, int] = {}
        """Of the node's memory, of models that have slept."""
        self.by_key: dict[str, EngineProcess] = {}
        self._by_name: dict[str, EngineProcess] = {}
        self._settled = asyncio.Event()
        """Set once vLLM was imported, or could not be."""
        self._numbers = itertools.count(1)
        self._log_file = log_file
        self._start_timeout_s = start_timeout_s
        self._stopping: set[asyncio.Task[None]] = set()
        self.client = HttpClient(resends=False)
        environment = {
            name: value
            for name, value in server_environment(os.environ).items()
            if name != "PYTHONPATH"
        }
        self.launcher = KeptProcess(
            Command(LAUNCHER_NAME, [python, "-P", str(LAUNCHER)], environment,
                    self._log_of(LAUNCHER_NAME)),
            on_message=self._on_message,
            on_end=self._on_launcher_end,
            grace_s=STOP_GRACE_S,
        )  # fmt: skip

    async def run(self) -> None:
        """Until cancelled, which ends all engines."""
        self._tasks.create_task(self._watch())
        try:
            await self.launcher.run()
        finally:
            self.client.close()
            shutil.rmtree(self.folder, ignore_errors=True)

    async def known_facts(self) -> LauncherFacts:
        """Raises EngineMissing if vLLM cannot be imported."""
        with suppress(TimeoutError):
            async with asyncio.timeout(IMPORT_TIMEOUT_S):
                await self._settled.wait()
        if self.facts is None:
            raise EngineMissing(
                f"{self.launcher.command.words[0]} cannot import vLLM, or not within"
                f" {IMPORT_TIMEOUT_S:g} s: {_last_error(self._log_of(LAUNCHER_NAME))}"
            )
        return self.facts

    def _log_of(self, name: str) -> Path:
        if self._log_file is None:
            return self.folder / f"{name}.log"
        return self._log_file.with_name(f"{self._log_file.stem}-{name}.log")

    # What the launcher tells

    def _on_message(self, head: Mapping[str, Any], _body: bytes) -> None:
        if "ready" in head:
            self.facts = LauncherFacts(
                str(head["version"]),
                frozenset(head["architectures"]),
                bool(head["can_sleep"]),
                float(head["import_s"]),
            )
            self._settled.set()
            ENGINE_START_SECONDS.labels(stage="imports").observe(self.facts.import_s)
            extra = {"version": self.facts.version, "can_sleep": self.facts.can_sleep}
            logger.info("vLLM imported", extra={**extra, "seconds": round(self.facts.import_s, 1)})
        elif "spawned" in head:
            if (engine := self._by_name.get(head["spawned"])) is not None:
                engine.pid = int(head["pid"])
        elif "exited" in head:
            self._ended(str(head["exited"]))
        else:
            logger.error("engine launcher refused", extra={"error": head.get("error")})

    def _on_launcher_end(self) -> None:
        """Its engines end with it."""
        self._settled.set()
        for name in tuple(self._by_name):
            self._ended(name)

    def _ended(self, name: str) -> None:
        engine = self._by_name.pop(name, None)
        if engine is None:
            return
        engine.ended.set()
        Path(engine.address.removeprefix("unix:")).unlink(missing_ok=True)
        if self.by_key.get(engine.key) is engine:
            del self.by_key[engine.key]
            if engine.state is EngineState.AWAKE:
                reason = _last_error(engine.log)
                logger.warning("engine ended", extra={"key": engine.key, "reason": reason})
                self.on_lost(engine.key)
            self.on_moved(engine.key)

    # A start, and the end

    async def start(
        self, key: str, arguments: Callable[[str], Sequence[str]], variables: Mapping[str, str]
    ) -> EngineProcess:
        """An engine that answers; raises LoadFailed, DeviceFull, EngineMissing.

        `arguments`: by the path of the socket.
        """
        await self.known_facts()
        await self._wait_freed()
        number = next(self._numbers)
        path = self.folder / f"{number}.sock"
        name = f"engine-{number}"
        engine = EngineProcess(key, name, f"unix:{path}", self._log_of(name))
        engine.log.unlink(missing_ok=True)
        self.by_key[key] = self._by_name[name] = engine
        free_bytes = self._free_bytes() if self._free_bytes else 0
        begun_s = time.monotonic()
        fields = {
            "name": name,
            "arguments": list(arguments(str(path))),
            "environment": dict(variables),
            "log_file": str(engine.log),
        }
        self.launcher.send({"spawn": fields})
        try:
            async with asyncio.timeout(self._start_timeout_s):
                await self._wait_answering(engine, path, begun_s)
        except BaseException as error:
            self._forget(engine)
            if isinstance(error, TimeoutError):
                raise LoadFailed(
                    f"vLLM did not start {key} within {self._start_timeout_s:g} s: {engine.log}"
                ) from error
            raise
        engine.state, engine.progress_s = EngineState.AWAKE, time.monotonic()
        if self._free_bytes:
            engine.memory_bytes = max(0, free_bytes - self._free_bytes())
        else:
            engine.memory_bytes = await asyncio.to_thread(session_bytes, engine.pid)
        for stage, seconds in engine.stages_s.items():
            ENGINE_START_SECONDS.labels(stage=stage).observe(seconds)
        logger.info("engine started", extra={"key": key, "stages_s": _rounded(engine.stages_s)})
        return engine

    async def _wait_freed(self) -> None:
        """Wait for engines that end or fall asleep: they have the memory that others need."""
        if self._stopping:
            await asyncio.wait(tuple(self._stopping), timeout=2 * STOP_GRACE_S)

    # Sleep

    def sleep(self, key: str) -> None:
        """Put a model's engine to sleep, in the background; one that refuses is stopped."""
        engine = self.by_key[key] = self.by_key.pop(key)  # the last of the sleepers
        engine.state = EngineState.ASLEEP
        self.in_background(self._sleep(engine))

    async def _sleep(self, engine: EngineProcess) -> None:
        awake_bytes = self._free_bytes() if self._free_bytes else 0
        if problem := await self._changed(engine, SLEEP):
            logger.warning("engine does not sleep", extra={"key": engine.key, "reason": problem})
            self.release(engine.key)
            return
        engine.host_bytes = await asyncio.to_thread(session_bytes, engine.pid)
        self.slept_bytes[engine.key] = engine.host_bytes
        if self._free_bytes:
            freed_bytes = self._free_bytes() - awake_bytes
            engine.remainder_bytes = max(0, engine.memory_bytes - freed_bytes)
        logger.info("engine asleep", extra={"key": engine.key, "host_bytes": engine.host_bytes})
        self.on_moved(engine.key)

    async def wake(self, key: str) -> EngineProcess | None:
        """The engine, awake; None if it has not slept, or cannot wake: it is stopped then."""
        await self._wait_freed()
        engine = self.by_key.get(key)
        if engine is None or engine.state is not EngineState.ASLEEP:
            return None
        begun_s = time.monotonic()
        if problem := await self._changed(engine, WAKE):
            logger.warning("engine does not wake", extra={"key": key, "reason": problem})
            self.release(key)
            await self._wait_freed()
            return None
        engine.state, engine.progress_s = EngineState.AWAKE, time.monotonic()
        engine.remainder_bytes = 0
        ENGINE_START_SECONDS.labels(stage="wake").observe(engine.progress_s - begun_s)
        return engine

    async def _changed(self, engine: EngineProcess, path: str) -> str:
        """Why an engine has not fallen asleep, or not woken up; empty: it has."""
        try:
            answer = await self.call(engine, "POST", path, timeout_s=self._start_timeout_s)
        except HttpError as error:
            return repr(error)
        return "" if answer.is_success else message_of(answer)

    def sleepers(self) -> list[EngineProcess]:
        """Those asleep, the one that has slept longest first."""
        return [each for each in self.by_key.values() if each.state is EngineState.ASLEEP]

    # The watch

    async def _watch(self) -> None:
        """Keep the load of the engines, and kill those that hang, until cancelled."""
        while True:
            awake = [each for each in self.by_key.values() if each.state is EngineState.AWAKE]
            await asyncio.gather(*map(self._look, awake))
            await asyncio.sleep(WATCH_INTERVAL_S)

    async def _look(self, engine: EngineProcess) -> None:
        before = engine.load
        try:
            answer = await self.call(engine, "GET", "/metrics", timeout_s=WATCH_TIMEOUT_S)
            engine.load = load_of(answer.text)
            has_work = engine.load.running + engine.load.waiting > 0
            if not has_work or engine.load.tokens != before.tokens:
                engine.progress_s = time.monotonic()
        except HttpError as error:  # the launcher tells of one that has ended
            logger.info("engine not seen", extra={"key": engine.key, "error": error})
        still_s = time.monotonic() - engine.progress_s
        if still_s > self._hang_s and engine.state is EngineState.AWAKE:
            logger.error("engine hangs, it is killed", extra={"key": engine.key})
            self.launcher.send({"stop": engine.name, "grace_s": 0.0})

    async def _wait_answering(self, engine: EngineProcess, path: Path, begun_s: float) -> None:
        while not engine.ended.is_set():
            if path.exists():  # noqa: ASYNC240 - a socket's name in memory
                with suppress(HttpError):
                    if (await self.call(engine, "GET", "/health", timeout_s=2.0)).is_success:
                        log = await asyncio.to_thread(_end_of, engine.log)
                        engine.stages_s = stages_of(log, time.monotonic() - begun_s)
                        return
            await asyncio.sleep(POLL_INTERVAL_S)
        reason = _last_error(engine.log)
        kind = DeviceFull if any(word in reason for word in _MEMORY_WORDS) else LoadFailed
        raise kind(f"vLLM did not start {engine.key}: {reason}")

    def _forget(self, engine: EngineProcess) -> None:
        """Kill an engine that has failed."""
        if self.by_key.get(engine.key) is engine:
            del self.by_key[engine.key]
        if not engine.ended.is_set():
            self.launcher.send({"stop": engine.name, "grace_s": 0.0})

    def release(self, key: str) -> None:
        """End a model's engine, in the background."""
        engine = self.by_key.pop(key, None)
        if engine is not None:
            self.in_background(self._stop(engine))
            self.on_moved(key)

    def in_background(self, work: Coroutine[Any, Any, None]) -> None:
        """What frees memory; starts and wakes wait for it."""
        task = self._tasks.create_task(work)
        self._stopping.add(task)
        task.add_done_callback(self._stopping.discard)

    async def _stop(self, engine: EngineProcess) -> None:
        self.launcher.send({"stop": engine.name, "grace_s": STOP_GRACE_S})
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
        headers = {"host": "engine", "content-type": "application/json"}
        return await self.client.request(
            method, engine.address, path, headers, body, timeout_s=timeout_s
        )


def _end_of(log: Path) -> str:
    try:
        return log.read_bytes()[-_LOG_BYTES:].decode(errors="replace")
    except OSError:
        return ""


def stages_of(log: str, total_s: float) -> dict[str, float]:
    """Seconds of a start by stage, as vLLM's log tells them; `process` is the rest."""
    stages = {stage: sum(map(float, pattern.findall(log))) for stage, pattern in _STAGES.items()}
    return {"process": max(0.0, total_s - sum(stages.values())), **stages}


def _last_error(log: Path) -> str:
    """Why a process ended, by the last error in its log, or the last line."""
    lines = [line.strip() for line in _end_of(log).splitlines()]
    errors = [line for line in lines if "Error: " in line and "Engine core" not in line]
    return (errors or [line for line in lines if line] or ["it ended without a word"])[-1][-500:]


def _rounded(stages_s: Mapping[str, float]) -> dict[str, float]:
    return {name: round(seconds, 2) for name, seconds in stages_s.items()}


_METRICS: Final[Mapping[str, str]] = {
    "vllm:num_requests_running": "running",
    "vllm:num_requests_waiting": "waiting",
    "vllm:kv_cache_usage_perc": "cache_used",
    "vllm:gpu_cache_usage_perc": "cache_used",
    "vllm:prompt_tokens_total": "tokens",
    "vllm:generation_tokens_total": "tokens",
}
"""vLLM's, with the fields to which they are added."""


def load_of(text: str) -> EngineLoad:
    """The load in an engine's metrics; what is missing is 0."""
    found: dict[str, float] = dict.fromkeys(_METRICS.values(), 0.0)
    for name, value in METRIC_SAMPLE.findall(text):
        if name in _METRICS:
            with suppress(ValueError):
                found[_METRICS[name]] += float(value)
    return EngineLoad(
        int(found["running"]), int(found["waiting"]), found["cache_used"], int(found["tokens"])
    )


def session_bytes(leader: int) -> int:
    """Memory of the processes of a session, shared pages by their share in each."""
    total = 0
    for path in Path("/proc").iterdir():
        try:
            if path.name.isdecimal() and os.getsid(int(path.name)) == leader:
                total += _proportional_bytes(path / "smaps_rollup")
        except OSError:  # it has ended
            continue
    return total


def _proportional_bytes(path: Path) -> int:
    for line in path.read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    return 0
