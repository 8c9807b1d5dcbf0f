"""The pod's side of scikit-learn's estimators: a confined process per namespace, while it is used.

A process runs only during a call of the pod: it is stopped in between, so code that it left behind
takes no CPU. Calls of a namespace take turns. A call over its limits ends the process; its models
are then loaded again by their next requests, and other namespaces notice nothing.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import resource
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import torch

from common.child_process import NO_OUTPUT, Child, Command, python_environment, python_module, start
from common.frames import Message
from common.inference_protocol import InvalidRequest, PodError
from common.inference_protocol.bodies import LENGTH_HEADER, decode_outputs, encode_request
from common.inference_protocol.tensors import Tensor
from registry.domain.model import ModelSpec, Task
from runtime.engines.engine import Engine, LoadedSkeleton, ModelFolder, Skeleton
from runtime.errors import (
    EngineMissing,
    InferenceFailed,
    InferenceHung,
    LoadFailed,
    ModelInvalid,
    ModelUnsupported,
    QueueFull,
    ServerUnavailable,
)
from runtime.sandbox import HEADER_LENGTH
from runtime.storage.listing import PICKLE_ADVICE, SKOPS_SUFFIX

logger = logging.getLogger(__name__)

MEMORY_BYTES: Final = 1024**3
"""Of a process, beyond the libraries: a file that takes more is not a model of scikit-learn."""
START_TIMEOUT_S: Final = 60.0
"""Its imports take seconds of CPU."""
LOAD_TIMEOUT_S: Final = 60.0
_END_TIMEOUT_S: Final = 1.0
_MAX_RESPONSE_BYTES: Final = 256 * 1024**2


class _Ended(Exception):
    """The process has ended, or sent what it must not, and was ended."""


@dataclass(frozen=True, slots=True)
class LoadedEstimator:
    """A model in its namespace's process."""

    namespace: str
    key: str
    number: int
    """Of this load, among all of the pod."""
    memory_bytes: int


@dataclass(eq=False, slots=True)
class _Process:
    namespace: str
    child: Child
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    keys: dict[int, str] = field(default_factory=dict)
    """By number: models that it has or loads."""
    is_ended: bool = False

    def resident_bytes(self) -> int:
        try:
            pages = int(Path(f"/proc/{self.child.pid}/statm").read_text().split()[1])
        except OSError:
            return 0
        return pages * resource.getpagesize()


class Estimators:
    """Belongs to the event loop that makes it; methods named `_in_thread` are for its threads."""

    def __init__(
        self, *, memory_bytes: int = MEMORY_BYTES, threads: int, takes_pickles: bool = False
    ) -> None:
        """`memory_bytes`: of each process, beyond the libraries; `threads`: of its inferences."""
        self.takes_pickles = takes_pickles
        self.on_lost: Callable[[str], None] = lambda key: None
        """Called on the loop with the key of each model whose process has ended."""
        self._memory_bytes = memory_bytes
        self._threads = threads
        self._loop = asyncio.get_running_loop()
        self._processes: dict[str, _Process] = {}
        self._starting: dict[str, asyncio.Lock] = {}
        self._running: set[asyncio.Task[Any]] = set()
        self._numbers = itertools.count()

    async def close(self) -> None:
        """End all processes, also those that are ending; calls fail as their processes end."""
        for process in list(self._processes.values()):
            process.keys.clear()
            await self._end(process)
        while self._running:
            await asyncio.gather(*self._running, return_exceptions=True)

    def load_in_thread(
        self, key: str, content: memoryview, *, is_skops: bool = False, wants_probabilities: bool
    ) -> LoadedEstimator:
        """Load a model in the process of its namespace; raises LoadFailed. Blocks.

        `is_skops`: a file of skops, not a pickle.
        """
        head = {"is_skops": is_skops, "wants_probabilities": wants_probabilities}
        loading = self._load(key, content, head)
        return asyncio.run_coroutine_threadsafe(loading, self._loop).result()

    def unload_soon(self, loaded: LoadedEstimator) -> None:
        """Unload a model in the background; from any thread."""
        with suppress(RuntimeError):  # the loop has closed, and so have the processes
            self._loop.call_soon_threadsafe(lambda: self._start(self._unload(loaded)))

    async def infer(
        self,
        loaded: LoadedEstimator,
        inputs: Sequence[Tensor],
        *,
        limit_s: float,
        deadline_s: float | None,
    ) -> tuple[Tensor, ...]:
        """The model's outputs; `deadline_s` ends the wait, `limit_s` the process.

        Raises InvalidRequest, InferenceFailed, InferenceHung, QueueFull, and ServerUnavailable
        where the process ended before the inference.
        """
        process = self._processes.get(loaded.namespace)
        if process is None or loaded.number not in process.keys:
            raise ServerUnavailable(f"the process of {loaded.key} ended; it is loaded again")
        body = encode_request(inputs)
        head = {
            "operation": "infer",
            "number": loaded.number,
            HEADER_LENGTH: dict(body.headers)[LENGTH_HEADER],
        }
        try:
            async with asyncio.timeout(_remaining_s(deadline_s)):
                response, content = await self._call(process, head, body.content, limit_s)
            _raise_failure(response)
            return decode_outputs(content, str(response.get(HEADER_LENGTH)))
        except TimeoutError as error:
            raise InferenceHung(
                f"the inference of {loaded.key} did not end before the request's deadline"
            ) from error
        except _Ended as error:
            raise InferenceFailed(
                f"the process of scikit-learn of {loaded.namespace} ended in an inference of"
                f" {loaded.key}: {error}"
            ) from error

    # Loads

    async def _load(
        self, key: str, content: memoryview, options: Mapping[str, bool]
    ) -> LoadedEstimator:
        namespace, number = key.partition("/")[0], next(self._numbers)
        process = await self._process(namespace)
        process.keys[number] = key
        before = process.resident_bytes()
        head = {"operation": "load", "number": number, **options}
        try:
            response, _ = await self._call(process, head, bytes(content), LOAD_TIMEOUT_S)
            _raise_failure(response)
        except (_Ended, InferenceHung, InferenceFailed, InvalidRequest) as error:
            self._forget(process, number)
            raise ModelInvalid(f"the model cannot be read: {error}") from error
        except BaseException:
            self._forget(process, number)
            raise
        grown_bytes = process.resident_bytes() - before
        return LoadedEstimator(namespace, key, number, max(len(content), grown_bytes))

    def _forget(self, process: _Process, number: int) -> None:
        process.keys.pop(number, None)
        if not process.keys:
            self._give_up(process)
            self._start(self._end(process))

    async def _unload(self, loaded: LoadedEstimator) -> None:
        process = self._processes.get(loaded.namespace)
        if process is None or loaded.number not in process.keys:
            return
        self._forget(process, loaded.number)
        if process.keys:
            with suppress(_Ended, PodError):
                head = {"operation": "unload", "number": loaded.number}
                await self._call(process, head, b"", LOAD_TIMEOUT_S)

    def _start(self, work: Any) -> asyncio.Task[Any]:
        task = self._loop.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return task

    # Processes

    async def _process(self, namespace: str) -> _Process:
        """The namespace's process, started if necessary; raises LoadFailed."""
        async with self._starting.setdefault(namespace, asyncio.Lock()):
            process = self._processes.get(namespace)
            if process is None:
                process = await self._start_process(namespace)
                self._processes[namespace] = process
            return process

    async def _start_process(self, namespace: str) -> _Process:
        # It gets nothing of the pod's environment, which has credentials.
        threads = {"OMP_NUM_THREADS": str(self._threads), "OPENBLAS_NUM_THREADS": "1"}
        env = {"PATH": "/usr/bin:/bin", "MKL_NUM_THREADS": "1", **threads}
        words = [*python_module("runtime.sandbox.pickles"), str(self._memory_bytes)]
        command = Command("scikit-learn", words, python_environment(env), NO_OUTPUT)
        child = await start(command, is_connected=True)
        process = _Process(namespace, child)
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                response, _ = await _read(child)
        except (TimeoutError, EOFError, OSError, ValueError) as error:
            await self._end(process)
            raise LoadFailed(f"no process for scikit-learn can be started: {error!r}") from error
        if "ready" not in response:
            await self._end(process)
            raise EngineMissing(
                f"scikit-learn's models cannot be served here: {_text_of(response.get('error'))}"
            )
        child.send_signal(signal.SIGSTOP)
        logger.info("process started", extra={"namespace": namespace, "process_id": child.pid})
        return process

    def _give_up(self, process: _Process) -> None:
        """Let no later call use it."""
        process.is_ended = True
        if self._processes.get(process.namespace) is process:
            del self._processes[process.namespace]

    async def _end(self, process: _Process, *, waits_s: float = _END_TIMEOUT_S) -> str:
        """End the process, and give up its models; how it ended. `waits_s`: for its own end."""
        self._give_up(process)
        keys, process.keys = list(process.keys.values()), {}
        process.child.abort()
        status = await process.child.end(grace_s=waits_s, number=signal.SIGCONT)
        for key in keys:
            self.on_lost(key)
        return f"signal {-status}" if status < 0 else f"status {status}"

    # Calls

    async def _call(
        self, process: _Process, head: Mapping[str, Any], body: bytes, limit_s: float
    ) -> tuple[dict[str, Any], bytes]:
        """Head and body of the response; raises _Ended, InferenceHung, QueueFull."""
        try:
            async with asyncio.timeout(limit_s):
                await process.turn.acquire()
        except TimeoutError as error:
            raise QueueFull(
                f"the process of scikit-learn of {process.namespace} was busy for {limit_s:g} s"
            ) from error
        if process.is_ended:
            process.turn.release()
            raise ServerUnavailable(
                f"the process of scikit-learn of {process.namespace} ended; they are loaded again"
            )
        # It goes on although its client leaves: the next response must be the next request's.
        outcome = await asyncio.shield(self._start(self._exchange(process, head, body, limit_s)))
        if isinstance(outcome, Exception):
            raise outcome
        response: tuple[dict[str, Any], bytes] = outcome
        return response

    async def _exchange(
        self, process: _Process, head: Mapping[str, Any], body: bytes, limit_s: float
    ) -> tuple[dict[str, Any], bytes] | Exception:
        try:
            process.child.send_signal(signal.SIGCONT)
            process.child.send(head, body)
            async with asyncio.timeout(limit_s):
                found = await _read(process.child)
            process.child.send_signal(signal.SIGSTOP)
        except TimeoutError:
            await self._end(process, waits_s=0.0)
            return InferenceHung(f"it did not end within {limit_s:g} s, and its process was ended")
        except (EOFError, OSError, ValueError) as error:
            ended = await self._end(process)
            logger.warning("process lost", extra={"namespace": process.namespace, "error": error})
            return _Ended(ended)
        finally:
            process.turn.release()
        return found


async def _read(child: Child) -> Message:
    """A response of code that is not trusted; raises EOFError, BadFrame."""
    found = await child.receive(max_bytes=_MAX_RESPONSE_BYTES)
    if found is None:
        raise EOFError("it ended")
    return found


def _raise_failure(response: Mapping[str, Any]) -> None:
    """Raise the error of the process."""
    for name, kind in (
        ("refused", InvalidRequest),
        ("invalid", ModelInvalid),
        ("failed", InferenceFailed),
    ):
        if name in response:
            raise kind(_text_of(response[name]))


def _text_of(value: object) -> str:
    return " ".join(str(value).split())[:500]


def _remaining_s(deadline_s: float | None) -> float | None:
    return None if deadline_s is None else max(0.0, deadline_s - time.monotonic())


class EstimatorEngine(Engine):
    """The engine of one model."""

    name = "sklearn"
    uses_device = False

    def __init__(self, path: Path, spec: ModelSpec, estimators: Estimators | None) -> None:
        """Raise ModelUnsupported if the pool serves no pickles: its disk may hold one of before."""
        self._is_skops = path.suffix == SKOPS_SUFFIX
        if estimators is None or not (self._is_skops or estimators.takes_pickles):
            raise ModelUnsupported(f"the model has {path.name}: {PICKLE_ADVICE}")
        self._path, self._spec, self._estimators = path, spec, estimators

    def skeleton_key(self, model: ModelFolder) -> str:
        return f"estimator {self._spec.key}"

    def build_skeleton(
        self, model: ModelFolder, *, key: str, device: torch.device, threads: int
    ) -> Skeleton:
        return LoadedSkeleton(
            key,
            lambda weights: self._estimators.load_in_thread(
                self._spec.key,
                weights[self._path.name].numpy().data,
                is_skops=self._is_skops,
                wants_probabilities=self._spec.task is Task.TABULAR_CLASSIFICATION,
            ),
            self._estimators.unload_soon,
            has_inferred=True,
        )
