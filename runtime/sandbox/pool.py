"""The pod's side of the sandbox: warm workers, a time limit, and what happens when it passes.

One evaluation of a model runs at a time, so one model never holds all workers. A worker over its
limits is killed and replaced; the request gets an error, and Refusals says which ones follow it.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from common.frames import BadFrame, frame, read_frame
from common.inference_protocol.errors import PodError
from runtime.errors import ExpressionRefused, ExpressionStopped, InvalidExpression
from runtime.metrics import EXPRESSIONS
from runtime.sandbox.worker import MAX_FRAME_BYTES, start_worker

logger = logging.getLogger(__name__)

PAUSE_S: Final = 300.0
SHARE: Final = 4
"""Inputs of a killed one's length divided by this, or more, are refused."""
MIN_BYTES: Final = 4096
"""A kill by an input up to this long refuses all inputs."""
WORKERS: Final = 2
TIMEOUT_S: Final = 5.0
"""Of one evaluation; beyond it the worker is killed. Templates take milliseconds, and long texts of
a tokenizer with unusual expressions a second."""
LOAD_TIMEOUT_S: Final = 60.0
"""For the construction of a tokenizer, whose file can have megabytes."""
_MAX_MODELS: Final = 4096


@dataclass(slots=True)
class Refusals:
    """Which evaluations of a model are refused after one was killed: those as long, or nearly.

    A template that never ends is soon refused whatever its input; a tokenizer that a huge text
    holds up goes on with texts of usual length, so one client's request does not shut its model.
    Times are of one clock.
    """

    from_bytes: int | None = None
    until_s: float = 0.0

    def record(self, size_bytes: int, now_s: float) -> None:
        """Record that an evaluation of an input of this size was killed."""
        allowed = size_bytes // SHARE if size_bytes > MIN_BYTES else 0
        if self.from_bytes is not None and now_s < self.until_s:
            allowed = min(allowed, self.from_bytes)
        self.from_bytes, self.until_s = allowed, now_s + PAUSE_S

    def refused_s(self, size_bytes: int, now_s: float) -> float:
        """For how long an input of this size is refused; 0 if it is not."""
        if self.from_bytes is None or size_bytes < self.from_bytes or now_s >= self.until_s:
            return 0.0
        return self.until_s - now_s


@dataclass(slots=True)
class _Worker:
    number: int
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter


@dataclass(slots=True)
class _Model:
    """State by owner of expressions."""

    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    refusals: Refusals = field(default_factory=Refusals)


class Sandbox:
    """Belongs to the event loop that starts it; `evaluate_in_thread` is for all other threads."""

    def __init__(
        self, control: socket.socket, *, timeout_s: float = TIMEOUT_S, on_lost: Callable[[], None]
    ) -> None:
        """`on_lost` is called when the server has ended and no worker can be started."""
        self._control = control
        self._timeout_s = timeout_s
        self._on_lost = on_lost
        self._models: dict[str, _Model] = {}
        self._idle: asyncio.Queue[_Worker] = asyncio.Queue()
        self._running: set[asyncio.Task[Any]] = set()
        self._loop = asyncio.get_running_loop()

    async def start(self) -> None:
        for number in range(WORKERS):
            self._idle.put_nowait(await self._start_worker(number))

    async def close(self) -> None:
        for task in self._running:
            task.cancel()
        self._control.close()

    async def evaluate(self, owner: str, size_bytes: int, **request: Any) -> Any:
        """The result of an operation of the worker.

        Args:
            owner: whose expression it is; shares of the workers and refusals are by owner.
            size_bytes: of the input.
            request: the operation and its arguments.

        Raises InvalidExpression, ExpressionStopped, ExpressionRefused.
        """
        model = self._model(owner)
        self._check(model, size_bytes)
        await model.turn.acquire()
        try:
            self._check(model, size_bytes)
            worker = await self._idle.get()
        except BaseException:
            model.turn.release()
            raise
        # The worker finishes although its client leaves: the next response must be the next one's.
        running = self._loop.create_task(self._exchange(worker, model, owner, size_bytes, request))
        self._running.add(running)
        running.add_done_callback(self._running.discard)
        outcome = await asyncio.shield(running)
        if isinstance(outcome, Exception):
            try:
                raise outcome
            finally:
                del outcome, running  # its traceback has this frame
        return outcome

    def evaluate_in_thread(self, owner: str, size_bytes: int, **request: Any) -> Any:
        """As `evaluate`; blocks a thread that is not the loop's."""
        work = self.evaluate(owner, size_bytes, **request)
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def _model(self, owner: str) -> _Model:
        if owner not in self._models and len(self._models) >= _MAX_MODELS:
            now_s = time.monotonic()
            self._models = {
                name: model
                for name, model in self._models.items()
                if model.turn.locked() or model.refusals.until_s > now_s
            }
        return self._models.setdefault(owner, _Model())

    def _check(self, model: _Model, size_bytes: int) -> None:
        refused_s = model.refusals.refused_s(size_bytes, time.monotonic())
        if refused_s:
            EXPRESSIONS.labels(outcome="refused").inc()
            raise ExpressionRefused(
                "the model's chat template or tokenizer was stopped with an input as short as this"
                f" one; inputs of {model.refusals.from_bytes} bytes or more are refused until then",
                retry_after_s=refused_s,
            )

    async def _exchange(
        self, worker: _Worker, model: _Model, owner: str, size_bytes: int, request: dict[str, Any]
    ) -> Any | PodError:
        limit_s = LOAD_TIMEOUT_S if request["operation"] == "load" else self._timeout_s
        try:
            async with asyncio.timeout(limit_s):
                response = await _call(worker, request)
        except (TimeoutError, EOFError, OSError, BadFrame) as error:
            is_slow = isinstance(error, TimeoutError)
            cause = f"did not end within {limit_s:g} s" if is_slow else "needed too much memory"
            EXPRESSIONS.labels(outcome="timeout" if is_slow else "memory").inc()
            logger.warning("expression stopped", extra={"owner": owner, "cause": cause})
            model.refusals.record(size_bytes, time.monotonic())
            await self._replace(worker)
            return ExpressionStopped(f"the model's chat template or tokenizer {cause}")
        finally:
            model.turn.release()
        self._idle.put_nowait(worker)
        if "error" in response:
            EXPRESSIONS.labels(outcome="error").inc()
            return InvalidExpression(response["error"])
        EXPRESSIONS.labels(outcome="ok").inc()
        return response["result"]

    async def _replace(self, worker: _Worker) -> None:
        worker.writer.transport.abort()
        try:
            self._idle.put_nowait(await self._start_worker(worker.number))
        except OSError as error:
            logger.error("no worker for expressions can be started", extra={"error": str(error)})
            self._on_lost()

    async def _start_worker(self, number: int) -> _Worker:
        ours, theirs = socket.socketpair()
        start_worker(self._control, number, theirs)
        reader, writer = await asyncio.open_unix_connection(sock=ours)
        return _Worker(number, reader, writer)


async def _call(worker: _Worker, request: dict[str, Any]) -> dict[str, Any]:
    """The worker's response. Raises EOFError if it has ended, BadFrame."""
    worker.writer.write(frame(request, max_bytes=MAX_FRAME_BYTES))
    await worker.writer.drain()
    response = await read_frame(worker.reader, max_bytes=MAX_FRAME_BYTES)
    if response is None:
        raise EOFError
    return response[0]
