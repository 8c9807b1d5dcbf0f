"""The process that looks at data: `python -m gateway.sneakpeek DESCRIPTOR`, a socket of a gateway.

It ends when the gateway closes the socket. Files are read in a thread, so that looks at other
applications' data go on.
"""

from __future__ import annotations

import socket
import sys
import time
from queue import SimpleQueue
from threading import Lock, Thread
from typing import TYPE_CHECKING, Final

from gateway.sneakpeek.frames import FrameReader, Kind, decode_load, decode_look, encode
from gateway.sneakpeek.looking import Looking

if TYPE_CHECKING:
    from gateway.sneakpeek.frames import Load, Loaded, Seen

_READ_BYTES: Final = 1 << 18


class _Process:
    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._looking = Looking()
        self._loads: SimpleQueue[Load] = SimpleQueue()
        self._send_lock = Lock()

    def run(self) -> None:
        Thread(target=self._load_all, daemon=True).start()
        reader = FrameReader()
        while data := self._connection.recv(_READ_BYTES):
            for kind, content in reader.feed(data):
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
    connection = socket.socket(fileno=int(sys.argv[1]))
    try:
        _Process(connection).run()
    except (ConnectionError, KeyboardInterrupt):
        pass
    finally:
        connection.close()


if __name__ == "__main__":
    main()
