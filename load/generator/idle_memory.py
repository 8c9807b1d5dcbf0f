"""The memory that idle models of the target held during a run.

A gateway has the total of its whole pool, deleted pods included, as of each pod's last heartbeat; a
pod has its own current total. Both are counters, so the value of a run is a difference.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import httpx
from prometheus_client.parser import text_string_to_metric_families

from load.generator.settings import Layout, RequestProtocol
from load.generator.target_url import base_url

if TYPE_CHECKING:
    from load.generator.settings import RunSettings

_TIMEOUT_S: Final = 10.0
_METRIC: Final = "pilotlight_idle_memory_byte_seconds"


class IdleMemoryProbe:
    """Reads the counter at the beginning and at the end of a run."""

    def __init__(self, settings: RunSettings) -> None:
        self._settings = settings
        self._before: float | None = None

    async def begin(self) -> None:
        self._before = await _read_byte_s(self._settings)

    async def end(self) -> float | None:
        """Bytes x seconds since `begin`; None if the target has no counter, or reset it."""
        before, after = self._before, await _read_byte_s(self._settings)
        return None if before is None or after is None or after < before else after - before


async def _read_byte_s(settings: RunSettings) -> float | None:
    if settings.protocol is RequestProtocol.GRPC or settings.layout is Layout.PLAIN:
        return None
    is_gateway = settings.layout is Layout.GATEWAY
    path = "/pilotlight/v1/idle-memory" if is_gateway else "/metrics"
    async with httpx.AsyncClient(trust_env=False, timeout=_TIMEOUT_S) as client:
        try:
            response = (await client.get(base_url(settings.url) + path)).raise_for_status()
            if is_gateway:
                return float(response.json()["idle_memory_byte_seconds"])
            return _of_metrics(response.text)
        except (httpx.HTTPError, ValueError, KeyError):
            return None


def _of_metrics(text: str) -> float | None:
    for family in text_string_to_metric_families(text):
        if family.name == _METRIC:
            return sum(sample.value for sample in family.samples)
    return None
