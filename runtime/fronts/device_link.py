"""A front's end: inferences and lessons of the device process, and connections to it."""

from __future__ import annotations

import asyncio
import itertools
import socket
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import orjson

from registry.domain.model import Task
from registry.domain.pod import Stage
from runtime.errors import NoRoomToInfer
from runtime.fronts.channel import Channel
from runtime.fronts.messages import Kind, Message
from runtime.fronts.request_fields import head_fields
from runtime.serving.remote_inference import RemoteRefused

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from runtime.fronts.channel import ChannelSockets
    from runtime.wire.request_head import RequestHead
    from runtime.wire.tensors import Tensor

COUNT_INTERVAL_S: Final = 0.5


class StaleModel(Exception):
    """Another generation of the model serves now: the request was not executed."""


@dataclass(frozen=True, slots=True)
class Inference:
    """Outputs of the network, and where they come from."""

    number: int
    outputs: tuple[Tensor, ...]
    start: str
    stages: Mapping[Stage, float]
    batch: str


@dataclass(frozen=True, slots=True)
class Lesson:
    """What a model's processor is built from."""

    key: str
    folder: Path
    task: Task | None


class DeviceLink:
    def __init__(
        self,
        *,
        on_connection: Callable[[socket.socket], None],
        on_close: Callable[[], None],
        on_lost: Callable[[], None],
    ) -> None:
        """`on_connection` gets clients' connections; `on_lost`: the device process has ended."""
        self._on_connection = on_connection
        self._on_close = on_close
        self._channel = Channel(self._receive, on_lost)
        self.address = ""
        """`host:port` of the pod; the first message says it, and the slots."""
        self._slots = 0
        self._places_used = 0
        self._numbers = itertools.count(1)
        self._replies: dict[int, asyncio.Future[Message]] = {}
        self._responses: Counter[tuple[str, str]] = Counter()
        """By stage and status, since they were last sent."""

    async def open(self, sockets: ChannelSockets) -> None:
        """From now on clients' connections may come."""
        await self._channel.open(sockets)
        self._channel.send(Kind.READY, {})

    @property
    def is_full(self) -> bool:
        """Whether the front has as many requests as the whole pod may have.

        Further ones are the device process's to refuse, before it reads their bodies.
        """
        return self._places_used >= self._slots

    @contextmanager
    def place(self) -> Iterator[None]:
        """One request of the front."""
        self._places_used += 1
        try:
            yield
        finally:
            self._places_used -= 1

    async def infer(
        self, head: RequestHead, key: str, inputs: tuple[Tensor, ...], preprocess_s: float
    ) -> Inference:
        """The outputs; call `end` once they are encoded.

        Cancelled, it cancels the request. Raises RemoteRefused, StaleModel, NoRoomToInfer.
        """
        number = next(self._numbers)
        fields = {**head_fields(head), "id": number, "key": key, "preprocess_s": preprocess_s}
        with self._reply_to(number) as reply:
            try:
                self._channel.send(Kind.INFER, fields, inputs)
            except OSError as error:
                raise NoRoomToInfer(f"the inputs cannot be handed over: {error}") from error
            try:
                message = await reply
            except asyncio.CancelledError:
                self._channel.send(Kind.CANCEL, {"id": number})
                raise
        found = message.fields
        match message.kind:
            case Kind.OUTPUTS:
                stages = {Stage(name): seconds for name, seconds in found["stages"].items()}
                return Inference(number, message.tensors, found["start"], stages, found["batch"])
            case Kind.STALE:
                raise StaleModel
            case _:
                body = orjson.dumps({"error": found["message"]})
                raise RemoteRefused(found["status"], body, found["headers"])

    def end(self, inference: Inference, postprocess_s: float | None) -> None:
        """The response is encoded, in that time; None: it cannot be."""
        self._channel.send(Kind.END, {"id": inference.number, "postprocess_s": postprocess_s})

    @contextmanager
    def lesson(self, model: str, generation: str | None) -> Iterator[asyncio.Future[Message]]:
        """The reply to a question for a model's files, which stay until the block ends."""
        number = next(self._numbers)
        with self._reply_to(number) as reply:
            self._channel.send(Kind.LEARN, {"id": number, "model": model, "generation": generation})
            try:
                yield reply
            finally:
                self._channel.send(Kind.LEARNT, {"id": number})

    def open_connection(self) -> socket.socket:
        """A new connection to the device process's HTTP server; raises OSError."""
        ours, theirs = socket.socketpair()
        self._channel.send(Kind.CONNECTION, {}, descriptors=(theirs.detach(),))
        return ours

    def count(self, stage: str, status: str) -> None:
        self._responses[stage, status] += 1

    async def report_responses(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(COUNT_INTERVAL_S)
            self.send_responses()

    def send_responses(self) -> None:
        if self._responses:
            counts = [(*labels, number) for labels, number in self._responses.items()]
            self._channel.send(Kind.RESPONSES, {"responses": counts})
            self._responses.clear()

    @contextmanager
    def _reply_to(self, number: int) -> Iterator[asyncio.Future[Message]]:
        reply: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._replies[number] = reply
        try:
            yield reply
        finally:
            del self._replies[number]

    def _receive(self, message: Message) -> None:
        match message.kind:
            case Kind.CONNECTION:
                self._on_connection(socket.socket(fileno=message.descriptors[0]))
            case Kind.START:
                self.address, self._slots = message.fields["address"], message.fields["slots"]
            case Kind.CLOSE:
                self._on_close()
            case _:
                reply = self._replies.get(message.fields["id"])
                if reply is not None and not reply.done():
                    reply.set_result(message)


def read_lesson(fields: Mapping[str, Any]) -> Lesson | None:
    """None: the front passes the model's requests on."""
    if fields["key"] is None:
        return None
    task = fields["task"]
    return Lesson(fields["key"], Path(fields["folder"]), None if task is None else Task(task))
