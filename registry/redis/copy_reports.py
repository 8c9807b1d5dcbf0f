"""How pods use the copies of models on their devices, as their heartbeats report it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from registry.domain.codec import decode_copies

if TYPE_CHECKING:
    from collections.abc import Mapping

    from registry.domain.pod import CopyReport
    from registry.redis.client import Registry


async def read_copy_reports(
    registry: Registry,
) -> dict[str, tuple[float, Mapping[str, CopyReport]]]:
    """By pod: registry time of its last report, and its copies by model key.

    Raises RegistryUnavailable. Pods of an older version are absent.
    """
    found = await registry.transactions.submit("copies")
    return {
        str(pod): (float(at_ms) / 1000, decode_copies(text)) for pod, at_ms, text in found or ()
    }
