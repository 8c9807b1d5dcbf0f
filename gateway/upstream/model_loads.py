"""Asks pods to load models in the background; at most one such load runs for a model."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

import httpx

if TYPE_CHECKING:
    from registry.domain.cluster import ClusterState
    from registry.domain.model import ModelName
    from registry.pod_secret import PodSecret
    from registry.tls import PartTls

logger = logging.getLogger(__name__)

_TIMEOUT_S: Final = 300.0
_MAX_WAITING: Final = 64
_PARALLEL: Final = 4


class ModelLoads:
    """Loads that requests have paid for; the pod claims each, and refuses one that is not needed.

    The autoscaler sees the load in the registry, like every other.
    """

    def __init__(self, secret: PodSecret, tls: PartTls, state: ClusterState) -> None:
        self._secret = secret
        self._tls = tls
        self._state = state
        self._waiting: asyncio.Queue[tuple[ModelName, str]] = asyncio.Queue(_MAX_WAITING)
        self._known: set[ModelName] = set()

    def request(self, model: ModelName, pod: str) -> None:
        """Begin a load soon; nothing if one of the model is under way, or too many wait."""
        if model not in self._known and not self._waiting.full():
            self._known.add(model)
            self._waiting.put_nowait((model, pod))

    async def run(self) -> None:
        """Load until cancelled."""
        timeout = httpx.Timeout(_TIMEOUT_S, connect=2.0)
        async with (
            httpx.AsyncClient(
                trust_env=False, timeout=timeout, **self._tls.httpx_options
            ) as client,
            asyncio.TaskGroup() as group,
        ):
            for _ in range(_PARALLEL):
                group.create_task(self._load_each(client))

    async def _load_each(self, client: httpx.AsyncClient) -> None:
        while True:
            model, name = await self._waiting.get()
            try:
                await self._load(client, model, name)
            except httpx.HTTPError as error:
                logger.warning("background load failed", extra={"model": model, "error": error})
            finally:
                self._known.discard(model)

    async def _load(self, client: httpx.AsyncClient, model: ModelName, name: str) -> None:
        pod = self._state.pods.get(name)
        if pod is None:
            return
        path = f"/v2/repository/models/{model.path_segment}/load"
        url = f"{self._tls.scheme}://{pod.address}{path}"
        parameters = {"tier": "device", "max_other_copies": 0}
        response = await client.post(
            url, json={"parameters": parameters}, headers=self._secret.headers
        )
        if response.is_success:
            logger.info("loaded for requests", extra={"model": model, "pod": name})
        else:
            logger.warning(
                "background load refused",
                extra={"model": model, "pod": name, "detail": response.text[:300]},
            )
