"""The sandbox of expressions, which are models' chat templates and tokenizers: a pool of workers.

One evaluation of a model runs at a time, so one model never holds all workers. A worker over its
time or memory limit is killed and replaced; the request gets an error, and similar ones are refused
for a while. Workers have no credential or socket of the pod.
"""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import signal
import socket
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NoReturn

from common.confinement import keep_only, limit_resources
from common.frames import BadFrame, frame, read_frame, received
from common.inference_protocol import PodError
from common.parent_death import die_with
from common.process import extend_process_title
from runtime.errors import ExpressionRefused, ExpressionStopped, InvalidExpression
from runtime.metrics import EXPRESSIONS

logger = logging.getLogger(__name__)

MEMORY_BYTES: Final = 512 * 1024**2
"""Memory that a worker may use beyond the libraries."""
MAX_FRAME_BYTES: Final = 256 * 1024**2
MAX_TEXT_CHARACTERS: Final = 16 * 1024**2
"""Longest text that a template may make."""
MAX_MESSAGE_CHARACTERS: Final = 500
MAX_TOKENIZERS: Final = 16
_KEPT_VARIABLES: Final = ("TOKENIZERS_PARALLELISM", "OMP_NUM_THREADS", "LANG", "LC_ALL", "TZ")


class _OutOfMemory(Exception):
    """The worker's memory limit is reached."""


def run_worker(connection: socket.socket, memory_bytes: int) -> NoReturn:
    """Serve one connection until it closes; `memory_bytes`: limit beyond the current use."""
    status = 1
    try:
        _limit(connection, memory_bytes)
        _serve(connection)
        status = 0
    except (_OutOfMemory, MemoryError, OSError):
        pass  # the pod sees the connection close
    finally:
        os._exit(status)


def _limit(connection: socket.socket, memory_bytes: int) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    kept = {name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ}
    os.environ.clear()  # it holds credentials of the storage
    os.environ.update(kept)
    keep_only(connection.fileno())
    limit_resources(memory_bytes, {resource.RLIMIT_NOFILE: 64})


def _serve(connection: socket.socket) -> None:
    evaluator = _Evaluator()
    for request, _ in received(connection):
        connection.sendall(frame(evaluator.evaluate(request), max_bytes=MAX_FRAME_BYTES))


class _Evaluator:
    def __init__(self) -> None:
        self._tokenizers: OrderedDict[str, Any] = OrderedDict()
        self._operations: Mapping[str, Callable[..., Any]] = {
            "render": self._render,
            "load": self._load,
            "encode": self._encode,
        }

    def evaluate(self, request: dict[str, Any]) -> dict[str, Any]:
        """The result of one request, or the text of its error."""
        operation = self._operations[request.pop("operation")]
        try:
            return {"result": operation(**request)}
        except MemoryError:
            raise _OutOfMemory from None
        except RecursionError:
            return {"error": "it is nested too deeply"}
        except BaseException as error:  # templates raise anything, and so does Rust
            return {"error": f"{error}"[:MAX_MESSAGE_CHARACTERS] or type(error).__name__}

    def _render(
        self, template: str, messages: list[dict[str, Any]], variables: dict[str, Any]
    ) -> str:
        """The text of a conversation, by transformers' jinja2 sandbox."""
        from transformers.utils.chat_template_utils import render_jinja_template

        rendered, _ = render_jinja_template(
            conversations=[messages], chat_template=template, **variables
        )
        text: str = rendered[0]
        if len(text) > MAX_TEXT_CHARACTERS:
            raise ValueError(f"it made {len(text)} characters, {MAX_TEXT_CHARACTERS} are allowed")
        return text

    def _load(self, folder: str) -> None:
        from transformers import AutoTokenizer

        from runtime.engines.networks.configuration import read_config

        self._tokenizers[folder] = AutoTokenizer.from_pretrained(
            folder, config=read_config(Path(folder)), trust_remote_code=False, local_files_only=True
        )
        while len(self._tokenizers) > MAX_TOKENIZERS:
            self._tokenizers.popitem(last=False)

    def _encode(
        self, folder: str, texts: list[str], options: dict[str, Any], attributes: dict[str, Any]
    ) -> dict[str, Any]:
        """The tokenizer's output; `attributes`: state of the tokenizer, such as the language."""
        if folder not in self._tokenizers:
            self._load(folder)
        self._tokenizers.move_to_end(folder)
        tokenizer = self._tokenizers[folder]
        for name, value in attributes.items():
            setattr(tokenizer, name, value)
        return dict(tokenizer(texts, **options))


def fork_server(memory_bytes: int = MEMORY_BYTES) -> socket.socket:
    """Fork the process that forks workers; returns its control socket.

    Call it while the pod has a single thread. The process has all libraries, so that workers are
    replaced in milliseconds. It ends when the socket closes; the kernel kills it and the workers
    when their parent dies.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    parent = os.getpid()
    if os.fork() == 0:
        ours.close()
        _run_server(theirs, parent, memory_bytes)
    theirs.close()
    return ours


def start_worker(control: socket.socket, number: int, connection: socket.socket) -> None:
    """Have the server replace worker `number` by one with this end of a connection.

    Closes `connection` here. Raises OSError if the server has ended.
    """
    with connection:
        socket.send_fds(control, [bytes([number])], [connection.fileno()])


def _run_server(control: socket.socket, parent: int, memory_bytes: int) -> NoReturn:
    try:
        die_with(parent)
        extend_process_title("sandbox")
        for number in (signal.SIGTERM, signal.SIGINT):  # the pod drains on these
            signal.signal(number, signal.SIG_IGN)
        keep_only(control.fileno())
        _replace_workers(control, memory_bytes)
    finally:
        os._exit(0)


def _replace_workers(control: socket.socket, memory_bytes: int) -> None:
    workers: dict[bytes, int] = {}
    own = os.getpid()
    while True:
        number, descriptors, _, _ = socket.recv_fds(control, 1, 1)
        if not number:
            return
        if number in workers:
            os.kill(workers[number], signal.SIGKILL)
            os.waitpid(workers[number], 0)
        with socket.socket(fileno=descriptors[0]) as connection:
            pid = os.fork()
            if pid == 0:
                die_with(own)
                run_worker(connection, memory_bytes)
        workers[number] = pid


PAUSE_S: Final = 300.0
REFUSAL_DIVISOR: Final = 4
"""After a killed evaluation, inputs of its length divided by this, or more, are refused."""
MIN_BYTES: Final = 4096
"""If an evaluation of an input up to this long is killed, all inputs are refused."""
WORKERS: Final = 2
TIMEOUT_S: Final = 5.0
"""Limit of one evaluation. Templates take milliseconds, unusual tokenizers a second."""
LOAD_TIMEOUT_S: Final = 60.0
"""Limit for loading a tokenizer, whose file can have megabytes."""
_MAX_MODELS: Final = 4096


@dataclass(slots=True)
class Refusals:
    """Refuses evaluations of a model after one was killed: those of similar length or longer.

    A template that never ends is soon refused for any input; a tokenizer that is too slow for a
    huge text still serves usual ones, so that one client's request does not block the model.
    """

    from_bytes: int | None = None
    until_s: float = 0.0

    def record(self, size_bytes: int, now_s: float) -> None:
        """Record that an evaluation of an input of this size was killed."""
        allowed = size_bytes // REFUSAL_DIVISOR if size_bytes > MIN_BYTES else 0
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
    """State of one owner of expressions."""

    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    refusals: Refusals = field(default_factory=Refusals)


class Sandbox:
    """The pool's client. Belongs to an event loop; other threads use `evaluate_in_thread`."""

    def __init__(
        self, control: socket.socket, *, timeout_s: float = TIMEOUT_S, on_lost: Callable[[], None]
    ) -> None:
        """`on_lost`: called when the server has ended, so that no worker can be started."""
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
        """Run an operation in a worker.

        Raises InvalidExpression, ExpressionStopped, ExpressionRefused.

        Args:
            owner: model of the expression; turns and refusals are by owner.
            size_bytes: size of the input.
            request: `operation` and its arguments.
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
        # The worker finishes even if its client leaves, else its response would go to the next one.
        running = self._loop.create_task(self._exchange(worker, model, owner, size_bytes, request))
        self._running.add(running)
        running.add_done_callback(self._running.discard)
        outcome = await asyncio.shield(running)
        if isinstance(outcome, Exception):
            try:
                raise outcome
            finally:
                del outcome, running  # breaks the cycle: its traceback holds this frame
        return outcome

    def evaluate_in_thread(self, owner: str, size_bytes: int, **request: Any) -> Any:
        """As `evaluate`, from a thread other than the loop's. Blocks."""
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
                f" one; inputs of {model.refusals.from_bytes} bytes or more are refused for"
                f" {refused_s:.0f} s",
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
