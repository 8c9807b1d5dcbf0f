"""A process that calls functions beside the event loop, so that no other request waits for them.

It is a module of the gateway's own, which ends in `serve`, with the gateway's socket as its input;
it ends when the gateway closes that. Arguments and results are pickled: both ends are the same
program, and nobody else has the socket.
"""

import asyncio
import logging
import math
import os
import pickle
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Any, Final

from common.child_process import Command, KeptProcess, python_environment, python_module
from common.frames import Message, frame, parent_socket, received

logger = logging.getLogger(__name__)

_ONE_THREAD: Final = dict.fromkeys(
    ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"
)


class ProcessEnded(Exception):
    """The process does not run, or ended before it had called the function."""


class FunctionProcess(KeptProcess):
    """Kept running once it is wanted; all calls that it has not answered fail where it ends."""

    def __init__(
        self,
        module: str,
        *,
        silent_s: float = 0.0,
        on_start: Callable[[], object] = lambda: None,
        on_end: Callable[[], object] = lambda: None,
    ) -> None:
        """It is killed where calls time out and none has been answered for `silent_s`."""
        super().__init__(
            Command(
                module, python_module(module), python_environment({**os.environ, **_ONE_THREAD})
            ),
            on_message=self._on_result,
            on_start=on_start,
            on_end=self._fail_calls,
            is_wanted=False,
        )
        self.pending: dict[int, asyncio.Future[Any]] = {}
        """The calls that wait for their results."""
        self._silent_s = silent_s
        self._late_since_s = math.inf
        """When a call timed out first, since one was answered."""
        self._after_end = on_end
        self._number = 0

    def call(
        self, name: str, *arguments: object, timeout_s: float | None = None
    ) -> asyncio.Future[Any]:
        """The result of a function; or ProcessEnded, or TimeoutError, after which none is begun."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        if self.child is None:
            future.set_exception(ProcessEnded())
            return future
        self._number += 1
        number, timer, until_s = self._number, None, None
        if timeout_s is not None:
            timer = loop.call_later(timeout_s, self._time_out, future)
            until_s = time.monotonic() + timeout_s  # the clock that processes share

        def end(_: asyncio.Future[Any]) -> None:
            del self.pending[number]
            if timer is not None:
                timer.cancel()

        self.pending[number] = future
        future.add_done_callback(end)
        self.send({"number": number, "name": name, "until_s": until_s}, pickle.dumps(arguments))
        return future

    def _time_out(self, future: asyncio.Future[Any]) -> None:
        now_s = time.monotonic()
        self._late_since_s = min(self._late_since_s, now_s)
        if now_s - self._late_since_s >= self._silent_s and self.child is not None:
            logger.warning("process does not answer", extra={"process_name": self.command.name})
            self.child.abort()
        _fail(future, TimeoutError())

    def _on_result(self, head: dict[str, Any], body: bytes) -> None:
        self._late_since_s = math.inf
        future = self.pending.get(head["number"])
        if future is not None and not future.done():
            future.set_result(pickle.loads(body))

    def _fail_calls(self) -> None:
        self._late_since_s = math.inf
        for future in list(self.pending.values()):
            _fail(future, ProcessEnded())
        self._after_end()


def _fail(future: asyncio.Future[Any], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)


def serve(
    functions: Mapping[str, Callable[..., object]],
    slow: Mapping[str, Callable[..., object]] | None = None,
) -> None:
    """In the process: call functions until the gateway ends; slow ones in a thread, in turn."""
    later: SimpleQueue[Message] = SimpleQueue()
    lock = Lock()

    def answer(functions: Mapping[str, Callable[..., object]], message: Message) -> None:
        head, body = message
        result = functions[head["name"]](*pickle.loads(body))
        content = frame({"number": head["number"]}, pickle.dumps(result))
        with lock:
            connection.sendall(content)

    def answer_later() -> None:
        while True:
            answer(slow or {}, later.get())

    with parent_socket() as connection, suppress(ConnectionError):
        if slow:
            Thread(target=answer_later, daemon=True).start()
        for message in received(connection):
            until_s = message[0]["until_s"]
            if message[0]["name"] not in functions:
                later.put(message)
            elif until_s is None or time.monotonic() < until_s:
                answer(functions, message)
