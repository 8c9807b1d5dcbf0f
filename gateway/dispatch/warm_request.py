"""A request to a model that is warm, from its head to the end of its response, by callbacks alone.

Most requests are like it: their head was seen before, their body came with it, a pod that has the
model takes them at once, and its response comes in one piece. Such a request has no task, future,
timer or body of its own. Whatever differs at any point is handed over, as far as it has come, to
`Request`, which decides about retries and all the rest; both call the same functions.
"""

import asyncio
import random
import time
from typing import Final

from gateway.dispatch.pod_request import WarmPath, WarmRoute, head_rest
from gateway.dispatch.reservations import Placement, Reservation
from gateway.dispatch.retries import MAX_WAIT_SHARE
from gateway.http.body import UNCOUNTED_BYTES
from gateway.http.client_request import NO_EVENT, ClientRequest, InferenceConnection
from gateway.http.headers import KnownHead
from gateway.http.pod_connection import PodConnection
from gateway.http.prompts import read_prompt
from gateway.routing.auto import run_warm
from gateway.routing.decision import LatencyEstimate, Reason, SendTo
from gateway.routing.latency_model import PodForecast, record_at
from gateway.routing.route_request import IncomingRequest
from gateway.telemetry.recent_requests import RecentRequest, StageTimings
from registry.domain.model import RoutingPolicy
from registry.domain.pod_state import LoadMode, PlacedRequest

_REASON: Final = str(Reason.WARM)
_POLICY: Final = str(RoutingPolicy.AUTO)


def take(
    path: WarmPath, connection: InferenceConnection, head: KnownHead, body: bytes, unread_s: float
) -> "WarmRequest | None":
    """The request, to be started; None: its head needs more than this.

    `unread_s`: how long the head was there before it was read.
    """
    loop_s = connection.loop.time()
    route = path.routes.route_of(head, loop_s)
    if route is None or not route.is_usual:
        return None
    return WarmRequest(path, route, connection, head, body, loop_s - unread_s)


class WarmRequest(Reservation):
    """One request; a request cycle, as uvicorn calls what its connections serve.

    It is its own reservation where no policy is asked.
    """

    message_event: Final = NO_EVENT
    disconnected = response_complete = response_started = False
    keep_alive = True
    is_begun = False
    """It is counted, and placed or refused: what goes on with it need not do that."""
    is_left = False
    """It was handed over, though the registry has not answered yet."""
    pod_connection: PodConnection | None = None
    """Over which it was sent."""
    sent_head = b""
    work: PlacedRequest | None = None
    started_s = sent_s = 0.0
    """By `time.perf_counter`."""
    losses = 0
    """`RequestQuarantine.losses` when it was sent."""
    _counted_bytes = 0
    """Of its body, among those that are held."""
    _timer: asyncio.TimerHandle | None = None
    _placement: Placement | None = None
    """Where its policy has decided; else it is its own reservation, at the soonest pod."""
    found: PodForecast
    """At that pod."""
    reason = _REASON
    policy = _POLICY
    forecast: LatencyEstimate | None = None

    def __init__(
        self,
        path: WarmPath,
        route: WarmRoute,
        connection: InferenceConnection,
        head: KnownHead,
        body: bytes,
        received_s: float,
    ) -> None:
        """`received_s`: loop time at which the head was there."""
        self._path = path
        self.route = route
        self._connection = connection
        self._head = head
        self._body = body
        self.received_s = received_s
        self.load_token, self.takes_slot, self.is_local = 0, True, False

    def _end_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def release_body(self) -> None:
        """Free its part of the budget; of one that was handed over, for the body that goes on."""
        if self._counted_bytes:
            self._path.held.release(self._counted_bytes)
            self._counted_bytes = 0

    def on_deadline(self) -> None:
        self.hand_over().run.on_deadline()

    def connection_lost(self) -> None:
        """Its client has disconnected."""
        if (self.is_begun or self.work is not None) and not self.response_complete:
            client = self.hand_over()
            client.disconnected = True
            client.connection_lost()

    def outlives(self) -> None:
        if not self.is_left:
            self.hand_over()

    def on_shutdown(self) -> None:
        """Go on as what the server ends at the end of its drain."""
        if self.is_begun and not self.is_left:
            self.hand_over()

    def hand_over(self) -> ClientRequest:
        """Let `Request` go on: with a task if it needs one, and to retry, if it may."""
        self._end_timer()
        client, self.is_left = self._client(), True
        if self.is_begun:
            client.begun = self
            if self.pod_connection is not None:
                self.pod_connection.owner = None
        else:
            self.release_body()
            if self.work is not None:
                self.work.end()
            client.disconnected = self.disconnected
        client.start()
        return client

    def _client(self) -> ClientRequest:
        waited_s = self._connection.loop.time() - self.received_s
        client = ClientRequest(
            self.route.target,
            self._head.headers,
            self._connection,
            waited_s,
            self._head,
            self._body,
        )
        client.keep_alive = self.keep_alive
        if not self.disconnected:
            self._connection.replace_served(client)
        return client

    def _fail(self) -> None:
        """Of an error that is the gateway's own: within the `except` that caught it."""
        if self.is_left:
            raise
        self.is_left = True
        if self.pod_connection is not None:
            self.pod_connection.owner = None
            self.pod_connection.close()
        self._end_timer()
        self.release_body()
        if self.is_begun:
            self._release()
        elif self.work is not None:
            self.work.end()
        client = self._client()
        client.response_started = self.response_complete
        client.fail()

    def start(self) -> None:
        """Decide, reserve and send, all at once; or hand over."""
        self.started_s = time.perf_counter()
        try:
            if self._may_be_begun():
                self._place()
            else:
                self.hand_over()
        except Exception:
            self._fail()

    def _may_be_begun(self) -> bool:
        path, route = self._path, self.route
        if self.disconnected or self._connection.flow.write_paused:
            return False
        if path.shutdown.is_leaving or path.shutdown.is_draining:
            return False
        if route.models_version != path.state.models_version or path.context.quarantine.records:
            return False
        if route.deadline_s is not None:
            waited_s = self._connection.loop.time() - self.received_s
            if waited_s > MAX_WAIT_SHARE * route.deadline_s:
                return False
        if route.content_length > UNCOUNTED_BYTES:
            if not path.held.may_take(route.content_length):
                return False
            self._counted_bytes = route.content_length
        return True

    def _place(self) -> None:
        """Take a slot of the pod that is certain to be the soonest, if there is one."""
        path, route = self._path, self.route
        loop_s = self._connection.loop.time()
        now_s, deadline_s = path.registry_now_s(), None
        self._arrival_s = arrival_s = now_s - max(0.0, loop_s - self.received_s)
        self._until_s = loop_s + path.request_timeout_s
        if route.deadline_s is not None:
            deadline_s = arrival_s + route.deadline_s
            self._until_s = loop_s + deadline_s - now_s
        self._deadline_s, self._drawn = deadline_s, path.draw(route.read)
        context, key = path.context, route.key
        self.request_id = f"{random.getrandbits(128):032x}"
        forecast = None
        if route.is_plain:
            forecast = context.placer.admission.decide_warm(
                route.target.model, key, route.size_class, deadline_s, now_s
            )
        if forecast is None:
            self._place_by_policy()
            return
        self.found = self.forecast = forecast
        self.entry = self.predict = pod = forecast.pod
        self.work = record_at(forecast, key, deadline_s, now_s)
        is_local = context.reservations.may_be_optimistic(pod, key)
        if deadline_s is not None or not is_local:
            self._timer = self._connection.loop.call_at(self._until_s, self.on_deadline)
        if is_local:
            context.reservations.hold_optimistic(self)
            self.is_begun = True
            self._send_placed(now_s)
        else:
            context.reservations.ask(self, self._on_reply)

    def _on_reply(self, is_granted: bool) -> None:  # a callback
        if self.is_left:
            if is_granted:
                self._path.context.reservations.release_one(self)
                self._path.context.placer.notify_change()
        elif is_granted:
            self.is_begun = True
            try:
                self._send_placed(self._path.registry_now_s())
            except Exception:
                self._fail()
        else:
            self.hand_over()

    def _send_placed(self, now_s: float) -> None:
        path, route = self._path, self.route
        path.state.arrivals.record(route.key, now_s)
        path.explanations.record_warm(
            self.request_id, route.target.model, route.spec, self.found, path.state, now_s
        )
        self._send(self)

    def _place_by_policy(self) -> None:
        """Hand over what waits, loads or is refused; go on with what a warm pod takes at once."""
        path = self._path
        arrival, route = self.arrival(), self.route
        if route.has_prompt:
            prompt = read_prompt((self._body,), route.content_length)
            arrival.take_prompt(prompt, route.content_length)
        placement = self._placement = Placement(arrival)
        placement.error = path.context.placer.place(placement)
        if placement.is_pending or placement.error is not None:
            self._send(None)
            return
        decision, reservation = placement.decision, placement.reservation
        self.policy, self.reason = str(placement.policy), str(decision.reason)
        self.forecast, self.entry = decision.forecast, reservation.entry
        if decision.mode is LoadMode.WARM and decision.entry == decision.predict:
            self._timer = self._connection.loop.call_at(self._until_s, self.on_deadline)
            self._send(reservation)
        else:
            self._send(None)

    def _send(self, reservation: Reservation | None) -> None:
        """It is placed: count it, and send it if there is a connection; None: hand over."""
        self.is_begun = True
        path, route = self._path, self.route
        context = path.context
        context.arrival_counter.count(route.target.model)
        context.retries.budget.earn()
        self.losses = context.quarantine.losses
        connection = None
        if reservation is not None:
            connection = context.connections.take_idle(reservation.entry.address)
        if reservation is None or connection is None:
            self.hand_over()
            return
        beginning = route.head_beginning(reservation.entry.address, context.connections.secret)
        left_s = self._until_s - self._connection.loop.time()
        self.sent_head = beginning + head_rest(reservation, self.request_id, left_s * 1000)
        connection.start()
        connection.owner, self.pod_connection = self, connection
        self.sent_s = time.perf_counter()
        connection.write(self.sent_head, (self._body,))
        if path.shutdown.is_draining:  # since it was placed
            self.hand_over()

    # The response

    def on_response(self, connection: PodConnection) -> None:
        """Something has come over the connection, or it has ended."""
        is_usual = connection.is_complete and connection.is_usual and self.keep_alive
        if not is_usual or self._path.context.quarantine.records:  # the response acquits it
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
        policy, reason, telemetry = self.policy, self.reason, context.telemetry
        forecast = self.forecast
        name, request_id = self.entry.name, self.request_id
        head = telemetry.warm_head(
            response,
            name,
            policy,
            reason,
            request_id,
            timings,
            connection.usual_timing,
            connection.length,
        )
        chunks = connection.take_body()
        self._release()  # before the client can send its next request
        self._connection.transport.write(b"".join((head, *chunks)))
        self.response_complete = True
        telemetry.ended(
            RecentRequest(
                request_id,
                time.time(),
                route.target.label,
                policy,
                reason,
                "warm",
                response.status,
                name,
                timings,
                forecast.seconds if forecast is not None and forecast.is_measured else None,
            )
        )
        context.connections.release(self.entry.address, connection)
        self._connection.on_response_complete()

    @property
    def decision(self) -> SendTo:  # type: ignore[override]
        return run_warm(self.found)

    @property
    def key(self) -> str:  # type: ignore[override]
        return self.route.key

    def add_pending(self, count: int) -> None:
        self.entry.add_pending(count, count)

    def _release(self) -> None:
        if self._timer is not None:
            self._end_timer()
        if self._counted_bytes:
            self.release_body()
        self.is_begun, context = False, self._path.context
        if self._placement is not None:
            context.placer.release(self._placement)
            return
        if self.work is not None:
            self.work.end()
        context.reservations.release_one(self)
        context.placer.notify_change()

    def arrival(self) -> IncomingRequest:
        if self._placement is not None:
            return self._placement.arrival
        draw, sequence = self._drawn
        return IncomingRequest(
            self.request_id,
            self.route.target.model,
            self._arrival_s,
            draw,
            sequence,
            None,
            self._deadline_s,
            None,
            self.route.size_class,
        )

    def placement(self, arrival: IncomingRequest) -> Placement:
        """What it holds, or waits for, for the request that goes on."""
        if self._placement is not None:
            return self._placement
        placement = Placement(arrival)
        placement.spec, placement.policy = self.route.spec, self.policy
        placement.decision, placement.reservation = self.decision, self
        placement.work, placement.is_pending, placement.direct_tries = self.work, False, 1
        return placement
