"""Requests to pods other than inference: a model's V2 metadata, and background loads."""

import asyncio
import logging
from http import HTTPStatus
from typing import Any, Final

from common.pod_client import PodClient, PodRefused
from gateway.errors import NotReady, Rejected
from gateway.routing.decision import Reason
from registry.domain.cluster import ClusterState
from registry.domain.model import PERMANENT_STATUSES, ModelName, ModelSpec, Tier

logger = logging.getLogger(__name__)

_TIMEOUT_S: Final = 10.0
_MAX_KEPT: Final = 1024
_TOO_LARGE: Final = "model-too-large"
"""Header `x-pilotlight-error` of a permanent 507, unlike that of a full disk."""
_MAX_WAITING: Final = 64
_PARALLEL: Final = 4


class ModelMetadata:
    """V2 metadata of models, read by a pod from their files and cached by generation.

    The pod is one that has the model, else any that accepts requests.
    """

    def __init__(self, pods: PodClient, state: ClusterState) -> None:
        self._pods = pods
        self._state = state
        self._kept: dict[str, dict[str, Any]] = {}

    async def read(self, spec: ModelSpec) -> dict[str, Any]:
        """The metadata document.

        Raises NotReady if no pod responds with it, Rejected if the files cannot be read.
        """
        known = self._kept.get(spec.key)
        if known is None:
            try:
                async with asyncio.timeout(_TIMEOUT_S):
                    known = await self._ask(spec)
            except (PodRefused, TimeoutError, ValueError) as error:
                raise NotReady(
                    f"no pod told the inputs of model {spec.name}: {error}", retry_after_s=1.0
                ) from error
            if len(self._kept) >= _MAX_KEPT:
                del self._kept[next(iter(self._kept))]
            self._kept[spec.key] = known
        return known

    async def _ask(self, spec: ModelSpec) -> dict[str, Any]:
        response = await self._pods.metadata(self._address(spec), spec.name.path_segment)
        found: dict[str, Any] = response.json()
        if response.status == HTTPStatus.OK:
            return found
        text = str(found.get("error", response.text[:500]))
        is_too_large = response.headers.get("x-pilotlight-error") == _TOO_LARGE
        if response.status in PERMANENT_STATUSES or is_too_large:
            raise Rejected(Reason.LOAD_FAILED, text, http_status=response.status)
        raise NotReady(text, retry_after_s=1.0)

    def _address(self, spec: ModelSpec) -> str:
        """Address of the accepting pod with the nearest copy of the model. Raises NotReady."""
        holders = self._state.holders(spec.key)
        accepting = [pod for pod in self._state.pods.values() if pod.is_accepting]
        if not accepting:
            raise NotReady("no pod accepts requests", retry_after_s=1.0)
        pod = min(accepting, key=lambda each: (_distance(holders.get(each.name)), each.name))
        return pod.address


def _distance(residency: Any) -> int:
    """0: on the device; 1: in host memory or on disk; 2: in object storage."""
    return 2 if residency is None else 0 if residency.is_warm else 1


class ModelLoads:
    """Background loads that the credit of requests started (`gateway.routing.cold_start`).

    At most one runs per model. The pod claims the load in the registry, where the autoscaler sees
    it, and refuses one that is not needed.
    """

    def __init__(self, pods: PodClient, state: ClusterState) -> None:
        self._pods = pods
        self._state = state
        self._waiting: asyncio.Queue[tuple[ModelName, str]] = asyncio.Queue(_MAX_WAITING)
        self._known: set[ModelName] = set()

    def request(self, model: ModelName, pod: str) -> None:
        """Queue a load, unless one of the model is in progress or the queue is full."""
        if model not in self._known and not self._waiting.full():
            self._known.add(model)
            self._waiting.put_nowait((model, pod))

    async def run(self) -> None:
        """Load until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(_PARALLEL):
                    group.create_task(self._load_each())
        finally:
            self._pods.close()

    async def _load_each(self) -> None:
        while True:
            model, name = await self._waiting.get()
            fields: dict[str, object] = {"model": model, "pod": name}
            pod = self._state.pods.get(name)
            try:
                if pod is not None:
                    segment = model.path_segment
                    await self._pods.load(pod.address, segment, Tier.DEVICE, max_other_copies=0)
                    logger.info("loaded for requests", extra=fields)
            except PodRefused as error:
                outcome = "failed" if error.is_unreachable else "refused"
                logger.warning("background load %s", outcome, extra=fields | {"detail": error})
            finally:
                self._known.discard(model)
