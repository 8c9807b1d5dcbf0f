"""What a gateway has for each pool: cluster state, queue, reservations, selection of variants.

Nothing of `variants` is imported before an application is declared.
"""

import asyncio
import math
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from common.pod_client import PodClient
from gateway.dispatch.placer import Placer
from gateway.dispatch.pod_request import RequestContext
from gateway.dispatch.reservations import TTL_S, Reservations
from gateway.dispatch.retries import PAUSE_S, OutlierDetection, RequestQuarantine, Retries
from gateway.http.pod_connection import PodConnectionPool
from gateway.http.routes import TargetResolver
from gateway.http.targets import KnownNames
from gateway.management.models import ModelLoads, ModelMetadata, ServedPool
from gateway.request_task import LoopTimers
from gateway.settings import GatewaySettings
from gateway.telemetry.arrival_counter import ArrivalCounter
from gateway.telemetry.event_log import EventLog
from gateway.telemetry.explanations import Explanations
from gateway.telemetry.metrics import GatewayMetrics
from gateway.telemetry.request_telemetry import RequestTelemetry
from registry.domain.cluster import ClusterState
from registry.domain.model import ModelName
from registry.domain.tenant_rules import UNKNOWN, parse_rules
from registry.redis.client import Registry
from registry.redis.watch import ClusterWatch

if TYPE_CHECKING:
    from variants.live import LiveApplications


class PoolApplications:
    def __init__(self, state: ClusterState, make: "Callable[[], LiveApplications]") -> None:
        """`make` them of the pool that has this state."""
        self._state = state
        self._make = make
        self._made: LiveApplications | None = None
        self._is_declared = asyncio.Event()

    def live(self) -> "LiveApplications":
        """Made at the first call."""
        if self._made is None:
            self._made = self._make()
            self._made.notify_change()
            self._is_declared.set()
        return self._made

    def notify_change(self) -> None:
        """Called after each change of the cluster state."""
        if self._made is not None:
            self._made.notify_change()
        elif self._state.applications:
            self._is_declared.set()

    async def run(self) -> None:
        """Begin once an application is declared, until cancelled."""
        await self._is_declared.wait()
        await asyncio.to_thread(import_module, "gateway.dispatch.application_request")
        await self.live().run()


@dataclass(frozen=True, slots=True)
class GatewayPool(ServedPool):
    """One pool's share of a gateway."""

    context: RequestContext
    applications: PoolApplications
    runs: tuple[Callable[[], Coroutine[Any, Any, None]], ...]

    def declares(self, model: ModelName) -> bool:
        """True for its models and applications."""
        state = self.watch.state
        return model in state.models or model in state.applications


class GatewayPools:
    """The pools of a gateway. A model is served by the first one that declares it."""

    def __init__(
        self, pools: Sequence[GatewayPool], names: KnownNames, *, is_guarded: bool
    ) -> None:
        """`names`: those of all pools; `is_guarded`: requests need a key or token."""
        self.names = names
        self.served = pools
        self.only = pools[0] if len(pools) == 1 else None
        self.targets = TargetResolver(names, is_guarded=is_guarded)
        self.resolve_target = self.targets.resolve
        """The target of a path as it was sent, and a Host; None: not a valid inference path."""

    @property
    def was_read(self) -> bool:
        """Every pool's registry was read at least once."""
        return all(each.watch.age_s() != math.inf for each in self.served)

    def declares(self, label: str) -> bool:
        """Whether a model or application has this metric label."""
        return ModelName.parse(label) in self.names

    def runs(self) -> list[Callable[[], Coroutine[Any, Any, None]]]:
        """Tasks for the gateway's life."""
        return [run for each in self.served for run in each.runs]

    async def close(self) -> None:
        for each in self.served:
            await each.watch.registry.close()

    def owner_of(self, model: ModelName) -> GatewayPool:
        """The pool that declares a model, or else the first one."""
        if self.only is not None:
            return self.only
        return next((each for each in self.served if each.declares(model)), self.served[0])

    async def find_owner(self, model: ModelName) -> GatewayPool:
        """As `owner_of`, and asks the registry for a model that no local state has."""
        for each in self.served:
            if each.declares(model) or await each.watch.find_model(model) is not None:
                return each
        return self.served[0]


def create_pool(
    settings: GatewaySettings,
    pool: str,
    gateway_id: str,
    *,
    metrics: GatewayMetrics,
    telemetry: RequestTelemetry,
    connections: PodConnectionPool,
    is_guarded: bool,
    names: KnownNames,
) -> GatewayPool:
    """Compose one pool's parts. With `is_guarded` requests need a key or token.

    The pool's models are added to `names`.
    """
    registry = Registry(settings.redis_url, pool)
    watch = ClusterWatch(registry)
    names.add(watch.state)
    watch.state.prefixes.on_sent = metrics.count_prompt
    reservations = Reservations(registry, watch.state, gateway_id, ttl_s=TTL_S)
    explanations = Explanations(gateway=telemetry.gateway.decode())
    queued = asyncio.Event()
    placer = Placer(
        watch.state,
        reservations,
        LoopTimers(),
        watch.registry_now_s,
        explanations.record,
        on_first=queued.set,
    )
    arrival_counter = ArrivalCounter(
        registry, gateway_id, placer.queue_stats, lambda: placer.queued_total, queued
    )
    events = EventLog(
        lambda outcome: metrics.events.labels(outcome).inc(),
        logger_rules(settings, is_guarded=is_guarded),
    )
    context = RequestContext(
        asyncio.get_running_loop(),
        placer,
        reservations,
        Retries(OutlierDetection(LoopTimers(), placer.notify_change), watch.state),
        connections,
        telemetry,
        arrival_counter,
        RequestQuarantine(time.monotonic, PAUSE_S),
        events,
        settings.body_timeout,
    )
    pods = PodClient(connections.secret, connections.tls)
    loads = ModelLoads(pods, watch.state)

    def make_applications() -> "LiveApplications":
        from variants.live import LiveApplications

        return LiveApplications(
            watch.state,
            loads.request,
            LoopTimers(),
            watch.registry_now_s,
            explanations.record_selection,
            count_look=lambda outcome: metrics.looks.labels(outcome).inc(),
            is_granted=lambda *named: (
                (watch.state.rules or UNKNOWN).granting_prefix(*named) is not None
            ),
        )

    applications = PoolApplications(watch.state, make_applications)
    for on_change in (
        placer.notify_change,
        reservations.retry_releases,
        applications.notify_change,
    ):
        watch.subscribe(on_change)
    return GatewayPool(
        pool,
        watch,
        explanations,
        placer,
        reservations,
        ModelMetadata(pods, watch.state),
        context,
        applications,
        (
            watch.run,
            reservations.renew_periodically,
            reservations.register_periodically,
            arrival_counter.run,
            applications.run,
            loads.run,
            events.run,
        ),
    )


def logger_rules(settings: GatewaySettings, *, is_guarded: bool) -> Callable[[str, str], bool]:
    """Whether a namespace's models may have their requests logged at a URL."""
    prefixes = settings.logger_prefixes
    if prefixes == "auto" and is_guarded:
        return _is_own_service
    rules = parse_rules(prefixes="*=*" if prefixes == "auto" else prefixes)
    return lambda namespace, url: rules.granting_prefix(namespace, url) is not None


def _is_own_service(namespace: str, url: str) -> bool:
    """Whether a URL is of a Service in the namespace."""
    host = (urlsplit(url).hostname or "").removesuffix(".cluster.local").removesuffix(".svc")
    return host.endswith(f".{namespace}") and host.count(".") == 1
