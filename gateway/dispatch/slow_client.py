"""The time that a client may take to read its response."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.errors import ClientTooSlow

if TYPE_CHECKING:
    from gateway.http.inference_client import InferenceClient


async def wait_for_reader(client: InferenceClient, stall_s: float) -> None:
    """Return once the client accepts more; raises ClientTooSlow if it reads nothing so long."""
    try:
        await client.drain(stall_s)
    except TimeoutError:
        raise ClientTooSlow(f"the client read nothing of its response for {stall_s:g} s") from None
