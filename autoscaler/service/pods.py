"""Asks pods to bring models nearer or to let them go, through their repository extension."""

from __future__ import annotations

from typing import TYPE_CHECKING

import httpx

from registry.domain.model import Tier

if TYPE_CHECKING:
    from registry.domain.model import ModelName

_CONNECT_S = 2.0
_TOLD_CHARACTERS = 300


class PodRefused(Exception):
    """The pod did not do it; the text says why."""

    def __init__(self, text: str, *, is_pods_fault: bool) -> None:
        super().__init__(text)
        self.is_pods_fault = is_pods_fault
        """It would refuse other models, too: draining, unreachable."""


class PodClient:
    """One client for all pods."""

    def __init__(self, *, load_timeout_s: float) -> None:
        self._client = httpx.AsyncClient(
            trust_env=False,
            timeout=httpx.Timeout(load_timeout_s, connect=_CONNECT_S),
            limits=httpx.Limits(max_connections=256, max_keepalive_connections=32),
        )

    async def close(self) -> None:
        """Drop all connections."""
        await self._client.aclose()

    async def load(self, address: str, model: ModelName, tier: Tier) -> None:
        """Bring a model so near; returns when it is there. Raises PodRefused."""
        await self._post(address, model, "load", {"parameters": {"tier": tier.value}})

    async def sink(self, address: str, model: ModelName, tier: Tier) -> None:
        """Take a model off the device, keeping it in `tier`. Raises PodRefused."""
        if tier is Tier.HOST:
            await self._post(address, model, "load", {"parameters": {"tier": tier.value}})
        await self._post(address, model, "unload", {})

    async def _post(
        self, address: str, model: ModelName, verb: str, document: dict[str, object]
    ) -> None:
        url = f"http://{address}/v2/repository/models/{model.path_segment}/{verb}"
        try:
            answer = await self._client.post(url, json=document)
        except httpx.HTTPError as error:
            raise PodRefused(
                f"no answer from the pod at {address}: {error!r}", is_pods_fault=True
            ) from error
        if answer.is_success:
            return
        is_draining = answer.headers.get("x-pilotlight-not-executed") == "draining"
        text = f"{answer.status_code}: {answer.text[:_TOLD_CHARACTERS]}"
        raise PodRefused(text, is_pods_fault=is_draining)
