"""The process that looks at data: `python -m gateway.sneakpeek`, its input a gateway's socket.

It ends when the gateway closes the socket. Files are read in a thread, so that looks at other
applications' data go on.
"""

from __future__ import annotations

import socket
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from threading import Lock, Thread

import numpy as np

from common.frames import frame, parent_socket, received
from gateway.selection.utility import profiled_accuracy
from gateway.sneakpeek.messages import Load, Loaded, Look, Seen, as_head, message_of
from gateway.sneakpeek.request_rows import MismatchedBody, UnreadableBody, read_rows
from gateway.sneakpeek.trained_file import InvalidSneakPeek, SneakPeekModel, fetch, read_sneakpeek


@dataclass(slots=True)
class Looking:
    """The trained looks in use, by application."""

    _models: dict[str, tuple[Load, SneakPeekModel]] = field(default_factory=dict)

    def load(self, wanted: Load) -> Loaded | None:
        """Read an application's files; None if it is not to be looked at any more."""
        if wanted.uri is None:
            self._models.pop(wanted.application, None)
            return None
        try:
            model = _read(wanted)
        except InvalidSneakPeek as error:
            self._models.pop(wanted.application, None)
            return Loaded(wanted.application, wanted.uri, problem=str(error))
        self._models[wanted.application] = (wanted, model)
        return Loaded(wanted.application, wanted.uri, profiled_accuracy(model.confusion))

    def look(self, look: Look, body: bytes) -> Seen:
        found = self._models.get(look.application)
        if found is None:
            return Seen(look.number)
        wanted, model = found
        try:
            read = read_rows(body, look.json_bytes, model.inputs, wanted.inputs, wanted.output)
            width = model.examples.centre.shape[0]
            if read.rows.shape[1] != width:
                raise MismatchedBody(
                    f"the inputs must have {width} numbers per row, were {read.rows.shape[1]}"
                )
        except MismatchedBody as error:
            return Seen(look.number, problem=str(error))
        except UnreadableBody:
            return Seen(look.number)
        evidence = model.examples.evidence(read.rows)
        return Seen(
            look.number,
            tuple(tuple(row) for row in evidence.tolist()),
            read.is_v2,
            read.request_id,
            read.is_answerable,
        )


def _read(wanted: Load) -> SneakPeekModel:
    assert wanted.uri is not None
    with tempfile.TemporaryDirectory() as folder:
        model = read_sneakpeek(fetch(wanted.uri, Path(folder)))
    if model.classes != wanted.classes:
        raise InvalidSneakPeek(
            f"{wanted.uri}: was trained for the classes {', '.join(model.classes)}; the "
            f"application has {', '.join(wanted.classes)}"
        )
    k = model.examples.k
    if wanted.k is not None and wanted.k != k:
        raise InvalidSneakPeek(
            f"{wanted.uri}: was trained and profiled with k {k}, spec.sneakPeek.k is {wanted.k}; "
            f"train it with --k {wanted.k}, or leave k out"
        )
    named = {each.name for each in wanted.inputs}
    if named and not set(model.inputs) <= named:
        raise InvalidSneakPeek(
            f"{wanted.uri}: was trained on the inputs {', '.join(model.inputs)}; the application "
            f"has {', '.join(sorted(named))}"
        )
    if not np.asarray(model.confusion).sum(axis=1).all():
        raise InvalidSneakPeek(f"{wanted.uri}: its profile has a class without examples")
    return model


class _Process:
    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._looking = Looking()
        self._loads: SimpleQueue[Load] = SimpleQueue()
        self._send_lock = Lock()

    def run(self) -> None:
        Thread(target=self._load_all, daemon=True).start()
        for head, body in received(self._connection):
            match message_of(head):
                case Load() as load:
                    self._loads.put(load)
                case Look() as look if time.monotonic() < look.until_s:
                    self._send(self._looking.look(look, body))

    def _load_all(self) -> None:
        while True:
            loaded = self._looking.load(self._loads.get())
            if loaded is not None:
                self._send(loaded)

    def _send(self, message: Seen | Loaded) -> None:
        with self._send_lock:
            self._connection.sendall(frame(as_head(message)))


def main() -> None:
    with parent_socket() as connection, suppress(ConnectionError):
        _Process(connection).run()


if __name__ == "__main__":
    main()
