"""Clients of the gateway that keep account of every request, from its first byte to its answer.

A request is *accepted* once all of its bytes were written to a connection that the gateway
accepted. From then on it must get a whole HTTP response. One case is the client's to retry, under a
new id: the connection broke, and a gateway process ended while the request was under way.
"""

import asyncio
import contextlib
import json
import random
import time
from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from tests.chaos.models import expected, features, model_name

ANSWER_LIMIT_S: Final = 120.0
"""The longest deadline, and the longest time for which all faults together stop a process."""
_DEADLINES_MS: Final = (2_000, 10_000, 20_000)
_PADDING: Final = b" " * (1_200 << 10)
"""Blanks before a JSON body; with them the gateway receives it into a temporary file."""
_PADDED_SHARE: Final = 0.02


class Outcome(StrEnum):
    ANSWERED = "answered"
    NOT_ACCEPTED = "not accepted"
    BROKEN = "connection broken"
    MISSING = "no answer"
    WRONG = "wrong answer"


@dataclass(slots=True)
class Sent:
    """One request and what became of it. Times are of `time.monotonic`."""

    id: str
    model: int
    began_s: float
    outcome: Outcome = Outcome.NOT_ACCEPTED
    ended_s: float = 0.0
    status: int = 0
    detail: str = ""


@dataclass(slots=True)
class Load:
    """An open loop of requests at `rate` per second to models 0 to `models`."""

    port: int
    models: int
    rng: random.Random
    rate: float
    requests: list[Sent] = field(default_factory=list)
    _pending: set[asyncio.Task[Sent]] = field(default_factory=set)
    _paused: bool = False
    _number: int = 0

    async def run(self) -> None:
        """Send until cancelled."""
        while True:
            await asyncio.sleep(self.rng.expovariate(self.rate))
            if not self._paused:
                task = asyncio.create_task(self._send(self.rng.randrange(self.models)))
                self._pending.add(task)
                task.add_done_callback(self._pending.discard)

    async def pause(self) -> None:
        """Send no more; returns when every request has its outcome."""
        self._paused = True
        while self._pending:
            await asyncio.wait(self._pending)

    def resume(self) -> None:
        self._paused = False

    async def probe(self, model: int) -> Sent:
        """One request now, also while the load is paused."""
        return await self._send(model)

    def outcomes(self) -> Counter[str]:
        """Number of requests by outcome, those with an answer by status."""
        return Counter(
            str(each.status) if each.outcome is Outcome.ANSWERED else str(each.outcome)
            for each in self.requests
        )

    async def _send(self, model: int) -> Sent:
        self._number += 1
        number = self._number
        sent = Sent(f"chaos-{number}", model, time.monotonic())
        self.requests.append(sent)
        try:
            async with asyncio.timeout(ANSWER_LIMIT_S):
                await self._exchange(sent, number)
        except TimeoutError:
            if sent.outcome is not Outcome.NOT_ACCEPTED:
                sent.outcome = Outcome.MISSING
        except (OSError, asyncio.IncompleteReadError, ValueError) as error:
            sent.detail = repr(error)
        sent.ended_s = time.monotonic()
        return sent

    async def _exchange(self, sent: Sent, number: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            writer.write(self._request(sent, number))
            await writer.drain()
            sent.outcome = Outcome.BROKEN  # until the answer is complete
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            body = await _read_body(reader, head)
            sent.status = int(head[9:12])
            sent.outcome = Outcome.ANSWERED
            if sent.status == 200:
                _check(sent, number, body)
            else:
                sent.detail = body[:300].decode(errors="replace")
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    def _request(self, sent: Sent, number: int) -> bytes:
        tensor = {"name": "features", "shape": [1, 4], "datatype": "FP32", "data": features(number)}
        body = json.dumps({"id": sent.id, "inputs": [tensor]}).encode()
        if self.rng.random() < _PADDED_SHARE:
            body = _PADDING + body
        return (
            f"POST /v2/models/{model_name(sent.model)}/infer HTTP/1.1\r\nhost: localhost\r\n"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\n"
            f"x-request-id: {sent.id}\r\nconnection: close\r\n"
            f"x-pilotlight-deadline-ms: {self.rng.choice(_DEADLINES_MS)}\r\n\r\n"
        ).encode() + body


async def _read_body(reader: asyncio.StreamReader, head: str) -> bytes:
    fields = dict(line.lower().split(": ", 1) for line in head.split("\r\n")[1:] if ": " in line)
    if "content-length" in fields:
        return await reader.readexactly(int(fields["content-length"]))
    body = b""
    while size := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
        body += (await reader.readexactly(size + 2))[:-2]
    await reader.readexactly(2)
    return body


def _check(sent: Sent, number: int, body: bytes) -> None:
    """The answer must be this model's, for this request."""
    answer = json.loads(body)
    data = answer["outputs"][0]["data"]
    if data != expected(sent.model, number) or answer["id"] != sent.id:
        sent.outcome, sent.detail = Outcome.WRONG, body[:300].decode(errors="replace")
