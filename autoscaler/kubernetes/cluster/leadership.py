"""One leader among the controller's replicas, by a Lease.

As in client-go: a lease counts as over when it was not renewed for its length by the clock of who
looks, so clocks need not agree. (The official Python client's own election fails at its first
call: its lock passes a boolean where the same release's API wants a string.)
"""

from __future__ import annotations

import asyncio
import datetime
import logging
import time
from typing import TYPE_CHECKING

from kubernetes.aio import client

from autoscaler.kubernetes.cluster.cluster_api import TIMEOUT_S, answers
from autoscaler.kubernetes.errors import Changed, Gone, KubernetesError

if TYPE_CHECKING:
    from collections.abc import Callable

logger = logging.getLogger(__name__)

LEASE = "pilotlight-controller"
LEASE_S = 10
RENEW_S = 7.0
"""A leader that could not renew for so long ceases to act, before another can begin."""
RETRY_S = 2.0
RELEASE_S = 3.0


class Leadership:
    """Takes part in the election until cancelled, and then gives the lease back."""

    def __init__(
        self, api: client.ApiClient, namespace: str, identity: str, lead: Callable[[bool], None]
    ) -> None:
        self._leases = client.CoordinationV1Api(api)
        self._namespace = namespace
        self._identity = identity
        self._lead = lead
        self._is_leading = False
        self._renewed_s = 0.0
        self._seen: tuple[object, ...] = ()
        self._seen_s = 0.0
        self._is_failing = False

    async def run(self) -> None:
        """Hold the lease, or try to get it."""
        try:
            while True:
                await self._try()
                await asyncio.sleep(RETRY_S)
        finally:
            if self._is_leading:
                self._set(is_leading=False)
                await self._release()

    async def _try(self) -> None:
        asked_s = time.monotonic()
        is_ours = False
        try:
            async with asyncio.timeout(RENEW_S - RETRY_S):
                is_ours = await self._take()
            self._is_failing = False
        except (KubernetesError, TimeoutError) as error:
            if not self._is_failing:
                logger.warning("the lease cannot be had", exc_info=error)
            self._is_failing = True
        if is_ours:
            self._renewed_s = asked_s
            self._set(is_leading=True)
        elif not self._is_failing or time.monotonic() - self._renewed_s > RENEW_S - RETRY_S:
            self._set(is_leading=False)

    async def _take(self) -> bool:
        """Take or renew the lease if it is ours, free or over."""
        try:
            with answers("read the lease", LEASE):
                lease = await self._leases.read_namespaced_lease(
                    LEASE, self._namespace, _request_timeout=TIMEOUT_S
                )
        except Gone:
            return await self._write(client.V1Lease(metadata=client.V1ObjectMeta(name=LEASE)))
        spec = lease.spec or client.V1LeaseSpec()
        seen = (spec.holder_identity, spec.renew_time, spec.lease_transitions)
        if seen != self._seen:
            self._seen, self._seen_s = seen, time.monotonic()
        is_over = time.monotonic() - self._seen_s > (spec.lease_duration_seconds or LEASE_S)
        if spec.holder_identity in (None, "", self._identity) or is_over:
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
        try:
            with answers("write the lease", LEASE):
                if lease.metadata.resource_version is None:
                    await self._leases.create_namespaced_lease(
                        self._namespace, lease, _request_timeout=TIMEOUT_S
                    )
                else:
                    await self._leases.replace_namespaced_lease(
                        LEASE, self._namespace, lease, _request_timeout=TIMEOUT_S
                    )
        except Changed:
            return False  # somebody else was quicker
        return True

    def _set(self, *, is_leading: bool) -> None:
        if is_leading != self._is_leading:
            self._is_leading = is_leading
            logger.info("leads" if is_leading else "follows", extra={"identity": self._identity})
            self._lead(is_leading)

    async def _release(self) -> None:
        """Let another replica lead at once instead of at the lease's end."""
        try:
            async with asyncio.timeout(RELEASE_S):
                with answers("give back the lease", LEASE):
                    await self._leases.patch_namespaced_lease(
                        LEASE, self._namespace, {"spec": {"holderIdentity": None}},
                        _content_type="application/merge-patch+json", _request_timeout=RELEASE_S,
                    )  # fmt: skip
        except (KubernetesError, TimeoutError) as error:
            logger.warning("the lease was not given back", exc_info=error)
