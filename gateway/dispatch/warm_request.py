"""A request to a model that is warm, from its head to the end of its response, by callbacks alone.

Most requests are like it: their head was seen before, their body came with it, a pod that has the
model takes them at once, and its response comes in one piece. Such a request has no task, future,
timer or body of its own. Whatever differs at any point is handed over, as far as it has come, to
`Request`, which decides about retries and all the rest; both call the same functions.
"""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING, Final

from gateway.dispatch.placement import Placement, Reservation
from gateway.dispatch.pod_request import head_rest
from gateway.dispatch.retries import MAX_WAIT_SHARE
from gateway.http.client_request import NO_EVENT, ClientRequest
from gateway.http.held_bodies import UNCOUNTED_BYTES
from gateway.routing.auto import run_warm
from gateway.routing.decision import Reason, SendTo
from gateway.routing.placed_requests import record_at
from gateway.telemetry.recent_requests import RecentRequest, StageTimings

if TYPE_CHECKING:
    from gateway.dispatch.request_context import RequestContext
    from gateway.dispatch.warm_route import WarmRoute, WarmRoutes
    from gateway.http.client_request import InferenceConnection
    from gateway.http.framing import KnownHead
    from gateway.http.held_bodies import HeldBodies
    from gateway.request_run import Deadlines, Expiring
    from gateway.routing.latency_model import PodForecast
    from gateway.routing.route_request import IncomingRequest
    from gateway.shutdown import Shutdown
    from gateway.telemetry.explanations import Explanations
    from gateway.upstream.pod_connection import PodConnection
    from registry.domain.pod_work import PlacedRequest
    from registry.redis.watch import ClusterWatch

_REASON: Final = str(Reason.WARM)


class WarmPath:
    """What all such requests of a gateway use."""

    def __init__(
        self, context: RequestContext, explanations: Explanations, watch: ClusterWatch,
        routes: WarmRoutes, deadlines: Deadlines, shutdown: Shutdown, held: HeldBodies, *,
        request_timeout_s: float,
    ) -> None:  # fmt: skip
        self.context = context
        self.explanations = explanations
        self.state = watch.state
        self.registry_now_s = watch.registry_now_s
        self.deadlines = deadlines
        self.shutdown = shutdown
        self.held = held
        self.request_timeout_s = request_timeout_s
        self._route_of = routes.route_of

    def take(
        self, connection: InferenceConnection, head: KnownHead, body: bytes, unread_s: float
    ) -> WarmRequest | None:
        """The request, to be started; None: its head needs more than this."""
        route: WarmRoute | None = head.route
        loop_s = connection.loop.time()
        if (
            route is None
            or route.models_version != self.state.models_version
            or route.allowed_until_s <= loop_s
        ):
            route = head.route = self._route_of(head, loop_s)
        if route is None or not route.is_warm:
            return None
        return WarmRequest(self, route, connection, head, body, loop_s - unread_s)


class WarmRequest(Reservation):
    """One request. For its connection it is a request cycle, for the registry a reservation."""

    message_event: Final = NO_EVENT
    disconnected = response_complete = response_started = False
    keep_alive = True
    is_begun = False
    """It has its slot; it has `forecast` and `work`, and was sent to its pod if it has `sent_s`."""
    is_asking = False
    """The registry is to grant the slot."""
    pod_connection: PodConnection
    work: PlacedRequest | None = None
    forecast: PodForecast
    started_s = sent_s = 0.0
    """By `time.perf_counter`."""
    _counted_bytes = 0
    """Of its body, among those that are held."""
    until_s = 0.0
    """Loop time of its deadline."""
    losses = 0
    """`LostPods.losses` when it was sent."""
    _due: set[Expiring] | None = None

    def __init__(
        self, path: WarmPath, route: WarmRoute, connection: InferenceConnection, head: KnownHead,
        body: bytes, received_s: float,
    ) -> None:  # fmt: skip
        self._path = path
        self.route = route
        self._connection = connection
        self._head = head
        self._body = body
        self.received_s = received_s
        self.load_token, self.takes_slot = 0, True

    def start(self) -> None:
        """Decide, reserve and send, all at once where the slot is not the registry's to grant."""
        self.started_s = time.perf_counter()
        try:
            is_placed = self._place()
        except Exception:
            self._fail()
        else:
            if not is_placed:
                self.hand_over()

    def _place(self) -> bool:
        path, route = self._path, self.route
        context, state = path.context, path.state
        if self.disconnected or self._connection.flow.write_paused:
            return False
        if path.shutdown.is_leaving or path.shutdown.is_draining:
            return False
        if route.models_version != state.models_version or context.lost_pods.remembers:
            return False
        if route.content_length > UNCOUNTED_BYTES:
            if not path.held.may_take_memory(route.content_length):
                return False
            self._counted_bytes = route.content_length
        loop_s = self._connection.loop.time()
        now_s, deadline_s, until_s = path.registry_now_s(), None, loop_s + path.request_timeout_s
        if route.deadline_s is not None:
            waited_s = max(0.0, loop_s - self.received_s)
            if waited_s > MAX_WAIT_SHARE * route.deadline_s:
                return False
            deadline_s = now_s - waited_s + route.deadline_s
            until_s = loop_s - waited_s + route.deadline_s
        model, key = route.target.model, route.key
        forecast = context.placer.admission.decide_warm(
            model, key, route.size_class, deadline_s, now_s
        )
        if forecast is None:
            return False
        pod = forecast.pod
        reservations, connection = context.reservations, None
        is_optimistic = reservations.may_be_optimistic(pod, key)
        if is_optimistic:
            connection = context.connections.take_idle(pod.address)
            if connection is None:
                return False
        self.forecast, self.until_s = forecast, until_s
        self.entry = self.predict = pod
        if is_optimistic:
            reservations.hold_optimistic(self)
            self.is_begun = True
        else:
            self.is_asking = True
            reservations.ask(self, self._on_answer)
        self.work = record_at(forecast, key, deadline_s, now_s)
        self.request_id = request_id = f"{random.getrandbits(128):032x}"
        path.explanations.record_warm(request_id, model, route.spec, forecast, state, now_s)
        if route.deadline_s is not None:
            self._due = path.deadlines.add(self, until_s, loop_s)
        if connection is not None:
            self._send(connection, loop_s)
        return True

    def _on_answer(self, is_granted: bool) -> None:
        context = self._path.context
        if not self.is_asking:  # it went on without
            if is_granted:
                context.reservations.end(self)
                context.placer.notify_change()
            return
        self.is_asking, self.is_begun = False, is_granted
        try:
            if is_granted:
                self._send(
                    context.connections.take_idle(self.entry.address), self._connection.loop.time()
                )
            else:
                self.hand_over()
        except Exception:
            self._fail()

    def _send(self, connection: PodConnection | None, now_s: float) -> None:
        """To the pod; None: hand over, for a new connection."""
        context, route = self._path.context, self.route
        context.arrival_counter.count(route.target.model)
        context.retries.budget.earn()
        self.losses = context.lost_pods.losses
        if connection is None:
            self.hand_over()
            return
        self.pod_connection = connection
        beginning = route.head_beginning(self.entry.address, context.connections.secret)
        rest = head_rest(self, self.request_id, (self.until_s - now_s) * 1000)
        connection.start()
        connection.owner = self
        self.sent_s = time.perf_counter()
        connection.write(beginning + rest, (self._body,))

    # The response

    def on_response(self) -> None:
        """Of the pod's connection: something has come, or it has ended."""
        connection = self.pod_connection
        if not (connection.is_complete and connection.is_usual and self.keep_alive):
            self.hand_over()
            return
        try:
            self._respond(connection)
        except Exception:
            self._fail()

    def _respond(self, connection: PodConnection) -> None:
        pod_ms = (time.perf_counter() - self.sent_s) * 1000
        timings = StageTimings((self.sent_s - self.started_s) * 1000, pod_ms, *connection.times_ms)
        context, route, response = self._path.context, self.route, connection.response
        policy, reason, telemetry = route.policy, _REASON, context.telemetry
        name, request_id = self.entry.name, self.request_id
        head = telemetry.warm_head(
            response, name, policy, reason, request_id, timings, connection.length
        )
        chunks = connection.take_body()
        self._release()  # before the client can send its next request
        self._connection.transport.write(head + chunks[0] if chunks else head)
        self.response_complete = True
        forecast = self.forecast
        telemetry.served(
            RecentRequest(
                request_id, time.time(), route.target.label, policy, reason, "warm",
                response.status, name, timings,
                forecast.seconds if forecast.is_measured else None,
            )
        )  # fmt: skip
        context.connections.release(self.entry.address, connection)
        self._connection.on_response_complete()

    @property
    def decision(self) -> SendTo:  # type: ignore[override]
        return run_warm(self.forecast)

    @property
    def key(self) -> str:  # type: ignore[override]
        return self.route.key

    def add_pending(self, count: int) -> None:
        self.entry.add_pending(count, count)

    def _release(self) -> None:
        if self.work is not None:
            self.work.end()
        self._end_counts()
        self.is_begun = False
        context = self._path.context
        context.reservations.end(self)
        context.placer.notify_change()

    def _end_counts(self) -> None:
        if self._due is not None:
            self._due.discard(self)
        if self._counted_bytes:
            self._path.held.release(self._counted_bytes, 0)
            self._counted_bytes = 0

    # What differs

    def on_deadline(self) -> None:
        self.hand_over().run.on_deadline()

    def connection_lost(self) -> None:
        """Its client has disconnected."""
        if self.is_asking or (self.is_begun and not self.response_complete):
            client = self.hand_over()
            client.disconnected = True
            client.connection_lost()

    def outlives(self) -> None:
        self.hand_over()

    def hand_over(self) -> ClientRequest:
        """Let `Request` go on: with a task if it needs one, and to retry, if it may."""
        self._end_counts()
        client = self._client()
        if self.is_begun:
            client.begun = self
            if self.sent_s:
                self.pod_connection.owner = None
        else:
            self._stop_asking()
            client.disconnected = self.disconnected
        client.start()
        return client

    def _stop_asking(self) -> None:
        self.is_asking = False
        if self.work is not None:
            self.work.end()
            self.work = None

    def _client(self) -> ClientRequest:
        waited_s = self._connection.loop.time() - self.received_s
        client = ClientRequest(
            self.route.target, self._head.headers, self._connection, waited_s, self._head,
            self._body,
        )  # fmt: skip
        client.keep_alive = self.keep_alive
        self._connection.replace_served(client)
        return client

    def _fail(self) -> None:
        """Of an error that is the gateway's own."""
        if self.is_begun:
            if self.sent_s:
                self.pod_connection.close()
            self._release()
        else:
            self._end_counts()
            self._stop_asking()
        client = self._client()
        client.response_started = self.response_complete
        client.fail()

    def placement(self, arrival: IncomingRequest) -> Placement:
        """What it holds, for the request that goes on."""
        placement = Placement(arrival)
        placement.spec, placement.policy = self.route.spec, self.route.policy
        placement.decision, placement.reservation = self.decision, self
        placement.work, placement.is_pending, placement.direct_tries = self.work, False, 1
        return placement
