"""Cancels work on the event loop when the ticket of its load is cancelled."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from runtime.storage.load_ticket import LoadTicket

Result = TypeVar("Result")


async def unless_cancelled(ticket: LoadTicket, work: Coroutine[Any, Any, Result]) -> Result:
    """The result of `work`; cancels `work` and raises LoadCancelled once the ticket is cancelled.

    If `work` completes all the same, its result is returned, so that resources in it are not lost.
    """
    loop = asyncio.get_running_loop()
    cancelled: asyncio.Future[None] = loop.create_future()

    def on_change() -> None:
        if ticket.is_cancelled:
            loop.call_soon_threadsafe(_set_done, cancelled)

    ticket.add_listener(on_change)
    on_change()
    task = asyncio.ensure_future(work)
    try:
        waited: set[asyncio.Future[Any]] = {task, cancelled}
        await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            task.cancel()
            await asyncio.wait({task})
    except asyncio.CancelledError:
        task.cancel()
        raise
    finally:
        ticket.remove_listener(on_change)
    if task.cancelled():
        ticket.raise_if_cancelled()
    return task.result()


def _set_done(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
