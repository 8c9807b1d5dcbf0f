"""Asks pods about models and for loads, over HTTP as in V2: `/v2/repository/models/NAME/load`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import orjson

from common.http_client import HttpClient
from common.http_connection import HttpError

if TYPE_CHECKING:
    from common.http_client import Response
    from common.pod_secret import PodSecret
    from common.tls import PartTls

LOAD_TIMEOUT_S: Final = 300.0
"""Longer than the largest models take, so that only a pod that hangs is given up."""
MAX_BODY_BYTES: Final = 1 << 20
MAX_ERROR_CHARACTERS: Final = 300
UNREACHABLE: Final = "unreachable"


class PodRefused(Exception):
    """The pod did not carry out the request; the text says why."""

    def __init__(self, text: str, *, cause: str) -> None:
        super().__init__(text)
        self.is_unreachable = cause == UNREACHABLE
        self.is_pod_unavailable = cause in {UNREACHABLE, "draining"}
        """True if requests for other models fail, too: the pod drains or is unreachable."""
        self.is_claim_refused = cause == "load-refused"
        """True if the registry refused the load: another pod loads the model, or has it."""


class PodClient:
    """One client of all pods. Belongs to the event loop."""

    def __init__(
        self, secret: PodSecret, tls: PartTls | None = None, *, timeout_s: float = LOAD_TIMEOUT_S
    ) -> None:
        self._secret = secret
        self._timeout_s = timeout_s
        self._client = HttpClient(tls=tls, max_body_bytes=MAX_BODY_BYTES)

    def close(self) -> None:
        self._client.close()

    async def load(self, address: str, model: str, tier: str, **parameters: float | bool) -> None:
        """Load a model to a tier; returns when it is there. Raises PodRefused.

        Cancelling it withdraws a load with the parameter `withdrawable` that nobody else wants.

        Args:
            address: `host:port` of the pod.
            model: as in a URL's path, `namespace~name`.
            tier: its name.
            parameters: more of the request's; see `runtime.serving.repository`.
        """
        await self._post(address, model, "load", {"parameters": {"tier": tier, **parameters}})

    async def unload(self, address: str, model: str) -> None:
        """Free a model's device memory. Raises PodRefused."""
        await self._post(address, model, "unload", {})

    async def metadata(self, address: str, model: str) -> Response:
        """The pod's response to `GET /v2/models/NAME`. Raises PodRefused without one."""
        return await self._request("GET", address, f"/v2/models/{model}", b"")

    async def _post(self, address: str, model: str, verb: str, document: dict[str, object]) -> None:
        path = f"/v2/repository/models/{model}/{verb}"
        response = await self._request("POST", address, path, orjson.dumps(document))
        if not response.is_success:
            cause = response.headers.get("x-pilotlight-not-executed", "")
            text = f"{response.status}: {response.text[:MAX_ERROR_CHARACTERS]}"
            raise PodRefused(text, cause=cause)

    async def _request(self, method: str, address: str, path: str, body: bytes) -> Response:
        headers = {"content-type": "application/json", **self._secret.headers}
        try:
            return await self._client.request(
                method, address, path, headers, body, timeout_s=self._timeout_s
            )
        except HttpError as error:
            text = f"no response from the pod at {address}: {error!r}"
            raise PodRefused(text, cause=UNREACHABLE) from error
