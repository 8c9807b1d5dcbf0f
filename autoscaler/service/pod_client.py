"""Client of the pods: loads and demotes models through their model repository extension."""

from __future__ import annotations

from typing import TYPE_CHECKING

import httpx

from registry.domain.model import Tier
from registry.pod_secret import PodSecret
from registry.tls import PartTls

if TYPE_CHECKING:
    from registry.domain.model import ModelName

_CONNECT_TIMEOUT_S = 2.0
_MAX_ERROR_CHARACTERS = 300
UNREACHABLE = "unreachable"


class PodRefused(Exception):
    """The pod did not carry out the request; the text says why."""

    def __init__(self, text: str, *, cause: str) -> None:
        super().__init__(text)
        self.is_pod_unavailable = cause in {UNREACHABLE, "draining"}
        """True if requests for other models fail, too: the pod drains or is unreachable."""
        self.is_claim_refused = cause == "load-refused"
        """True if the registry refused the load: another pod loads the model, or has it."""


class PodClient:
    """One HTTP client for all pods."""

    def __init__(
        self, *, load_timeout_s: float, secret: PodSecret | None = None, tls: PartTls | None = None
    ) -> None:
        self._secret = secret or PodSecret()
        tls = tls or PartTls()
        self._scheme = tls.scheme
        self._client = httpx.AsyncClient(
            trust_env=False,
            timeout=httpx.Timeout(load_timeout_s, connect=_CONNECT_TIMEOUT_S),
            limits=httpx.Limits(max_connections=256, max_keepalive_connections=32),
            **tls.httpx_options,
        )

    async def close(self) -> None:
        await self._client.aclose()

    async def load(self, address: str, model: ModelName, tier: Tier, max_other_copies: int) -> None:
        """Load a model to a tier; returns when it is there. Raises PodRefused."""
        parameters = {"tier": tier.value, "max_other_copies": max_other_copies}
        await self._post(address, model, "load", {"parameters": parameters})

    async def demote(self, address: str, model: ModelName, tier: Tier) -> None:
        """Free a model's device memory and keep it in `tier`. Raises PodRefused."""
        if tier is Tier.HOST:
            await self._post(address, model, "load", {"parameters": {"tier": tier.value}})
        await self._post(address, model, "unload", {})

    async def _post(
        self, address: str, model: ModelName, verb: str, document: dict[str, object]
    ) -> None:
        url = f"{self._scheme}://{address}/v2/repository/models/{model.path_segment}/{verb}"
        try:
            response = await self._client.post(url, json=document, headers=self._secret.headers)
        except httpx.HTTPError as error:
            raise PodRefused(
                f"no response from the pod at {address}: {error!r}", cause=UNREACHABLE
            ) from error
        if response.is_success:
            return
        cause = response.headers.get("x-pilotlight-not-executed", "")
        text = f"{response.status_code}: {response.text[:_MAX_ERROR_CHARACTERS]}"
        raise PodRefused(text, cause=cause)
