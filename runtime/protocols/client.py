"""The client of one HTTP request on ASGI: its body within a limit, and work while it stays."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

from runtime.errors import BodyTooLarge, InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Coroutine, Mapping

    from starlette.types import Receive

Result = TypeVar("Result")


class ClientLeft(Exception):
    """The client closed its connection; nobody reads an answer."""


async def read_body_of(headers: Mapping[str, str], receive: Receive, most_bytes: int) -> bytes:
    """The whole body of a request with these headers, refused before more than the limit is held.

    Raises BodyTooLarge, InvalidRequest, ClientGone.
    """
    encoding = headers.get("content-encoding", "identity")
    if encoding != "identity":
        raise InvalidRequest(
            f"header content-encoding must be absent or identity, was {encoding[:40]!r}:"
            " send the body as it is"
        )
    declared = headers.get("content-length")
    if declared is not None and int(declared) > most_bytes:
        raise _too_large(most_bytes, f"{declared} bytes")
    return await _read_whole(receive, most_bytes)


async def _read_whole(receive: Receive, most_bytes: int) -> bytes:
    chunks, total = [], 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientLeft
        chunk = message.get("body", b"")
        total += len(chunk)
        if total > most_bytes:
            raise _too_large(most_bytes, f"{total} bytes and more")
        chunks.append(chunk)
        if not message.get("more_body", False):
            break
    if not total:
        raise InvalidRequest("the body is empty")
    return b"".join(chunks)


def _too_large(most_bytes: int, seen: str) -> BodyTooLarge:
    return BodyTooLarge(f"the body may have {most_bytes} bytes, has {seen}")


async def while_connected(receive: Receive, work: Coroutine[object, object, Result]) -> Result:
    """Do the work; raises ClientGone, the work cancelled and over, when the client leaves."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientLeft
        return await task
    finally:
        for each in (gone, task):
            if not each.done():
                each.cancel()
        await asyncio.gather(gone, task, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
