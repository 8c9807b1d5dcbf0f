"""The client's side of one HTTP request over ASGI: reads the body, detects a disconnect."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, TypeVar

from common.content_coding import ACCEPTED, CODINGS, UnpackedTooLarge, coding_of, unpack
from common.inference_protocol.errors import BodyTooLarge, InvalidRequest
from runtime.errors import UnsupportedCoding
from runtime.serving.in_flight import Interruption

if TYPE_CHECKING:
    from collections.abc import Coroutine, Mapping

    from starlette.types import Receive

Result = TypeVar("Result")
WATCH_AFTER_S: Final = 0.01
"""A request that takes less ends before a cancellation would have saved anything."""


class RequestAborted(Exception):
    """The client closed its connection and reads no response."""


async def receive_body(headers: Mapping[str, str], receive: Receive, max_bytes: int) -> bytes:
    """The whole body of a request, unpacked; at most `max_bytes` of it are held in memory.

    Raises BodyTooLarge, InvalidRequest, UnsupportedCoding, RequestAborted.
    """
    coding = coding_of(headers.get("content-encoding"))
    if coding and coding not in CODINGS:
        raise UnsupportedCoding(
            f"header content-encoding must be absent or one of identity, {ACCEPTED}, was"
            f" {coding[:40]!r}"
        )
    declared = headers.get("content-length")
    if declared is not None and int(declared) > max_bytes:
        raise _too_large(max_bytes, f"{declared} bytes")
    chunks, total = [], 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise RequestAborted
        chunk = message.get("body", b"")
        total += len(chunk)
        if total > max_bytes:
            raise _too_large(max_bytes, f"{total} bytes or more")
        chunks.append(chunk)
        if not message.get("more_body", False):
            break
    if not total:
        raise InvalidRequest("the body is empty")
    body = b"".join(chunks)
    return await _unpacked(body, coding, max_bytes) if coding else body


async def _unpacked(body: bytes, coding: str, max_bytes: int) -> bytes:
    """Zeros take a thousandth of their length: in a thread, however short the body is."""
    try:
        return await asyncio.to_thread(unpack, body, coding, max_bytes)
    except UnpackedTooLarge as error:
        raise _too_large(max_bytes, f"more, packed as {coding}") from error
    except ValueError as error:
        raise InvalidRequest(f"the body {error}, as header content-encoding says") from error


def _too_large(max_bytes: int, seen: str) -> BodyTooLarge:
    return BodyTooLarge(f"the body may have {max_bytes} bytes, has {seen}")


async def while_connected(receive: Receive, work: Coroutine[object, object, Result]) -> Result:
    """The result of `work`; if the client disconnects, cancels it and raises RequestAborted.

    Runs it in the caller's task, and watches the client only once it has run for `WATCH_AFTER_S`: a
    task for each request would cost more than all of this.
    """
    loop = asyncio.get_running_loop()
    interruption = Interruption()
    watcher: asyncio.Task[None] | None = None

    def watch() -> None:
        nonlocal watcher
        watcher = loop.create_task(_wait_disconnected(receive, interruption))

    timer = loop.call_later(WATCH_AFTER_S, watch)
    try:
        result = await work
    except BaseException as error:
        if interruption.end(error):
            raise RequestAborted from error
        raise
    finally:
        timer.cancel()
        if watcher is not None:
            watcher.cancel()
    interruption.end(None)
    return result


async def _wait_disconnected(receive: Receive, interruption: Interruption) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    interruption.request()
