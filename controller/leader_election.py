"""Leader election among the controller's replicas, with a Lease.

As in client-go, each replica times the lease by its own clock: a lease expires when the replica saw
no renewal for the lease duration, so clocks need not agree. (The election of the official Python
client fails at its first call: its lock passes a boolean where the same release's API expects a
string.)
"""

import asyncio
import datetime
import logging
import time
from collections.abc import Callable

from kubernetes.aio import client

from controller.api import MERGE_PATCH, Changed, KubernetesError, StoredObject, request

logger = logging.getLogger(__name__)

LEASE = "pilotlight-controller"
LEASE_S = 10
RENEW_S = 7.0
"""A leader that cannot renew for this long stops acting, before another replica can start."""
RETRY_S = 2.0
RELEASE_TIMEOUT_S = 3.0


async def take_lease(
    api: client.ApiClient, namespace: str, *, holder: str, duration_s: int
) -> None:
    """Take the lease from whoever holds it, who notices within `RENEW_S`. Raises Gone."""
    now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    spec = {"holderIdentity": holder, "leaseDurationSeconds": duration_s, "renewTime": now}
    await _patch_lease(api, namespace, spec)


async def _patch_lease(api: client.ApiClient, namespace: str, spec: object) -> None:
    path = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/{LEASE}"
    body = {"spec": spec}
    await request(api, "PATCH", path, "the lease", body, content_type=MERGE_PATCH)


class Leadership:
    """Takes part in the election until cancelled, then releases the lease."""

    def __init__(
        self,
        api: client.ApiClient,
        namespace: str,
        identity: str,
        on_change: Callable[[bool], None],
    ) -> None:
        self._api = api
        self._store = StoredObject(client.CoordinationV1Api(api), "lease", LEASE, namespace)
        self._namespace = namespace
        self._identity = identity
        self._on_change = on_change
        self._is_leading = False
        self._renewed_s = 0.0
        self.version = 0
        """Resource version of the lease as written by this replica: later leaders' are higher."""
        self._lease: client.V1Lease | None = None
        """As written last; None: it may have changed since."""
        self._observed: tuple[object, ...] = ()
        self._observed_s = 0.0
        self._is_failing = False

    async def run(self) -> None:
        try:
            while True:
                await self._renew()
                await asyncio.sleep(RETRY_S)
        finally:
            if self._is_leading:
                self._set(is_leading=False)
                await self._release()

    async def _renew(self) -> None:
        started_s = time.monotonic()
        is_held = False
        try:
            async with asyncio.timeout(RENEW_S - RETRY_S):
                is_held = await self._acquire()
            self._is_failing = False
        except (KubernetesError, TimeoutError) as error:
            if not self._is_failing:
                logger.warning("the lease could not be acquired; retrying", exc_info=error)
            self._is_failing = True
        if is_held:
            self._renewed_s = started_s
            self._set(is_leading=True)
        elif not self._is_failing or time.monotonic() - self._renewed_s > RENEW_S - RETRY_S:
            self._set(is_leading=False)

    async def _acquire(self) -> bool:
        """Acquire or renew the lease if it is held by this replica, free or expired."""
        if self._lease is not None and await self._write(self._lease):
            return True  # a renewal needs no read, as in client-go
        lease = await self._store.read()
        if lease is None:
            return await self._write(client.V1Lease(metadata=client.V1ObjectMeta(name=LEASE)))
        spec = lease.spec or client.V1LeaseSpec()
        observed = (spec.holder_identity, spec.renew_time, spec.lease_transitions)
        if observed != self._observed:
            self._observed, self._observed_s = observed, time.monotonic()
        age_s = time.monotonic() - self._observed_s
        is_expired = age_s > (spec.lease_duration_seconds or LEASE_S)
        if spec.holder_identity in (None, "", self._identity) or is_expired:
            return await self._write(lease)
        return False

    async def _write(self, lease: client.V1Lease) -> bool:
        now = datetime.datetime.now(datetime.UTC)
        spec = lease.spec or client.V1LeaseSpec()
        if spec.holder_identity != self._identity:
            spec.acquire_time = now
            spec.lease_transitions = (spec.lease_transitions or 0) + 1
        spec.holder_identity = self._identity
        spec.lease_duration_seconds = LEASE_S
        spec.renew_time = now
        lease.spec = spec
        self._lease = None
        try:
            written = await self._store.write(lease)
        except Changed:
            return False  # another replica was faster
        self._lease = written
        self.version = int(written.metadata.resource_version)
        return True

    def _set(self, *, is_leading: bool) -> None:
        if is_leading != self._is_leading:
            self._is_leading = is_leading
            logger.info(
                "leading" if is_leading else "following", extra={"identity": self._identity}
            )
            self._on_change(is_leading)

    async def _release(self) -> None:
        """Release the lease, so that another replica need not wait for its expiry."""
        try:
            async with asyncio.timeout(RELEASE_TIMEOUT_S):
                await _patch_lease(self._api, self._namespace, {"holderIdentity": None})
        except (KubernetesError, TimeoutError) as error:
            logger.warning("the lease was not released", exc_info=error)
