"""How much memory idle models of the target held during a run.

A gateway knows it of its whole pool, pods that are gone included, as of each pod's last heartbeat;
a pod knows its own to the moment. Both only count on, so a run's is a difference.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import httpx
from prometheus_client.parser import text_string_to_metric_families

from load.generator.settings import Layout, RequestProtocol

if TYPE_CHECKING:
    from load.generator.settings import RunSettings

_TIMEOUT_S: Final = 10.0
_METRIC: Final = "pilotlight_idle_memory_byte_seconds"


class IdleMemoryProbe:
    """What idle models held of the target's pods during a run."""

    def __init__(self, settings: RunSettings) -> None:
        self._settings = settings
        self._before: float | None = None

    async def begin(self) -> None:
        """The run begins now."""
        self._before = await _byte_s(self._settings)

    async def end(self) -> float | None:
        """Bytes x seconds since; None where the target does not tell, or counts anew."""
        before, after = self._before, await _byte_s(self._settings)
        return None if before is None or after is None or after < before else after - before


async def _byte_s(settings: RunSettings) -> float | None:
    if settings.protocol is RequestProtocol.GRPC or settings.layout is Layout.PLAIN:
        return None
    base = settings.url if "://" in settings.url else f"http://{settings.url}"
    is_gateway = settings.layout is Layout.GATEWAY
    path = "/pilotlight/v1/idle-memory" if is_gateway else "/metrics"
    async with httpx.AsyncClient(trust_env=False, timeout=_TIMEOUT_S) as client:
        try:
            answer = (await client.get(base.rstrip("/") + path)).raise_for_status()
            if is_gateway:
                return float(answer.json()["idle_memory_byte_seconds"])
            return _of_metrics(answer.text)
        except (httpx.HTTPError, ValueError, KeyError):
            return None


def _of_metrics(text: str) -> float | None:
    for family in text_string_to_metric_families(text):
        if family.name == _METRIC:
            return sum(sample.value for sample in family.samples)
    return None
