"""The parts of the gateway that every request uses."""

import asyncio
from dataclasses import dataclass

from gateway.dispatch.lost_pods import LostPods
from gateway.dispatch.placement import Placement
from gateway.dispatch.placer import Placer
from gateway.dispatch.reservations import Reservations
from gateway.dispatch.retries import Retries
from gateway.telemetry.arrival_counter import ArrivalCounter
from gateway.telemetry.request_telemetry import RequestTelemetry
from gateway.upstream.event_log import EventLog
from gateway.upstream.pod_connection import PodConnectionPool


@dataclass(frozen=True, slots=True)
class RequestContext:
    loop: asyncio.AbstractEventLoop
    placer: Placer[Placement]
    reservations: Reservations
    retries: Retries
    connections: PodConnectionPool
    telemetry: RequestTelemetry
    arrival_counter: ArrivalCounter
    lost_pods: LostPods
    events: EventLog
    stall_s: float
    """How long a client may read nothing of its response."""
