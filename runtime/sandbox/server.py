"""Forks the workers: a process with all libraries and no thread, forked from the pod at its start.

A worker is replaced in milliseconds, since nothing is imported again. The server ends when the pod
closes its control socket, and the kernel kills server and workers when their parent dies.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
from typing import Final, NoReturn

from runtime.sandbox.worker import run_worker

MEMORY_BYTES: Final = 512 * 1024**2
"""What a worker may use beyond the libraries."""
_PR_SET_PDEATHSIG: Final = 1


def fork_server(memory_bytes: int = MEMORY_BYTES) -> socket.socket:
    """The control socket of a new server. Call it while the process has a single thread.

    A message is one byte, the worker's number, with the worker's end of a connection: that worker
    is killed, if it runs, and a new one takes its place.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    parent = os.getpid()
    if os.fork() == 0:
        ours.close()
        _run_server(theirs, parent, memory_bytes)
    theirs.close()
    return ours


def _run_server(control: socket.socket, parent: int, memory_bytes: int) -> NoReturn:
    try:
        _die_with(parent)
        for number in (signal.SIGTERM, signal.SIGINT):  # the pod drains on these
            signal.signal(number, signal.SIG_IGN)
        os.closerange(3, control.fileno())
        os.closerange(control.fileno() + 1, 4096)
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
                _die_with(own)
                run_worker(connection, memory_bytes)
        workers[number] = pid


def _die_with(parent: int) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it ended before the line above
        os._exit(1)
