"""Forks children on demand: a process with all libraries and no thread, forked at the pod's start.

A child is replaced in milliseconds, since nothing is imported again. The forking process ends when
the pod closes its control socket, and the kernel kills it and the children when their parent dies.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
from typing import TYPE_CHECKING, Final, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable

    RunChild = Callable[..., NoReturn]
    """Gets the child's ends of its connections, which are sockets."""

MAX_CONNECTIONS: Final = 2
"""Of a child."""
_PR_SET_PDEATHSIG: Final = 1


def serve_forks(run: RunChild) -> socket.socket:
    """The control socket of a new forking process, whose children call `run`.

    Call it while the process has a single thread.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    parent = os.getpid()
    if os.fork() == 0:
        ours.close()
        _run_server(theirs, parent, run)
    theirs.close()
    return ours


def start_child(control: socket.socket, number: int, *connections: socket.socket) -> None:
    """Start a child with its ends of connections, in place of the one of that number.

    Closes these ends. Raises OSError if the forking process has ended.
    """
    try:
        socket.send_fds(control, [bytes([number])], [each.fileno() for each in connections])
    finally:
        for each in connections:
            each.close()


def _run_server(control: socket.socket, parent: int, run: RunChild) -> NoReturn:
    try:
        _die_with(parent)
        for number in (signal.SIGTERM, signal.SIGINT):  # the pod drains on these
            signal.signal(number, signal.SIG_IGN)
        os.closerange(3, control.fileno())
        os.closerange(control.fileno() + 1, 4096)
        _replace_children(control, run)
    finally:
        os._exit(0)


def _replace_children(control: socket.socket, run: RunChild) -> None:
    children: dict[bytes, int] = {}
    own = os.getpid()
    while True:
        number, descriptors, _, _ = socket.recv_fds(control, 1, MAX_CONNECTIONS)
        if not number:
            return
        if number in children:
            os.kill(children[number], signal.SIGKILL)
            os.waitpid(children[number], 0)
        connections = [socket.socket(fileno=each) for each in descriptors]
        pid = os.fork()
        if pid == 0:
            _die_with(own)
            run(*connections)
        for connection in connections:
            connection.close()
        children[number] = pid


def _die_with(parent: int) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it ended before the line above
        os._exit(1)
