"""The process that looks at data: `python -m gateway.sneakpeek DESCRIPTOR`, a socket of a gateway.

It ends when the gateway closes the socket. Files are read in a thread, so that looks at other
applications' data go on.
"""

from __future__ import annotations

import time
from queue import SimpleQueue
from threading import Lock, Thread
from typing import TYPE_CHECKING

from gateway.sneakpeek.frames import Kind, decode_load, decode_look, encode
from gateway.sneakpeek.gateway_socket import gateway_socket, received
from gateway.sneakpeek.looking import Looking

if TYPE_CHECKING:
    import socket

    from gateway.sneakpeek.frames import Load, Loaded, Seen


class _Process:
    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._looking = Looking()
        self._loads: SimpleQueue[Load] = SimpleQueue()
        self._send_lock = Lock()

    def run(self) -> None:
        Thread(target=self._load_all, daemon=True).start()
        for kind, content in received(self._connection):
            if kind is Kind.LOAD:
                self._loads.put(decode_load(content))
            elif kind is Kind.LOOK:
                look = decode_look(content)
                if time.monotonic() < look.until_s:
                    self._send(self._looking.look(look))

    def _load_all(self) -> None:
        while True:
            loaded = self._looking.load(self._loads.get())
            if loaded is not None:
                self._send(loaded)

    def _send(self, message: Seen | Loaded) -> None:
        with self._send_lock:
            self._connection.sendall(encode(message))


def main() -> None:
    with gateway_socket() as connection:
        _Process(connection).run()


if __name__ == "__main__":
    main()
