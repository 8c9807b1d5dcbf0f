"""The processes that evaluate expressions of models' files, with limits of their own.

Expressions are those of jinja2's sandbox and of `tokenizers`; nothing here reads a credential or a
socket of the pod.

A process that has all libraries and no thread, from the pod's start on, forks them: a worker is
replaced in milliseconds, since nothing is imported again. It ends when the pod closes its control
socket, and the kernel kills it and the workers when their parent dies.
"""

from __future__ import annotations

import os
import resource
import signal
import socket
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, NoReturn

from common.confinement import keep_only, limit_resources
from common.frames import frame, received
from common.parent_death import die_with
from common.process import extend_process_title

MEMORY_BYTES: Final = 512 * 1024**2
"""What a worker may use beyond the libraries."""
MAX_FRAME_BYTES: Final = 256 * 1024**2
MAX_TEXT_CHARACTERS: Final = 16 * 1024**2
"""Longest text that a template may make."""
MAX_MESSAGE_CHARACTERS: Final = 500
MAX_TOKENIZERS: Final = 16
_KEPT_VARIABLES: Final = ("TOKENIZERS_PARALLELISM", "OMP_NUM_THREADS", "LANG", "LC_ALL", "TZ")


class _OutOfMemory(Exception):
    """The process cannot go on within its limit."""


def run_worker(connection: socket.socket, memory_bytes: int) -> NoReturn:
    """Serve one connection until it closes; `memory_bytes`: on top of what the process has."""
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
    os.environ.clear()  # credentials of the storage are there
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
    """Its control socket. Call it while the process has a single thread."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    parent = os.getpid()
    if os.fork() == 0:
        ours.close()
        _run_server(theirs, parent, memory_bytes)
    theirs.close()
    return ours


def start_worker(control: socket.socket, number: int, connection: socket.socket) -> None:
    """Start a worker with its end of a connection, in place of the one of that number.

    Closes this end. Raises OSError if the forking process has ended.
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
