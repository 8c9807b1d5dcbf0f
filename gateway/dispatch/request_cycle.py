"""A request that goes by callbacks: what its client's connection needs, how it is handed over."""

from typing import Final

from gateway.dispatch.placement import Reservation
from gateway.dispatch.warm_route import WarmPath, WarmRoute
from gateway.http.client_request import NO_EVENT, ClientRequest, InferenceConnection
from gateway.http.framing import KnownHead
from gateway.request_run import Expiring
from gateway.upstream.pod_connection import PodConnection
from registry.domain.pod_state import PlacedRequest


class RequestCycle(Reservation):
    """A request cycle, as uvicorn calls what its connections serve."""

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
    """`LostPods.losses` when it was sent."""
    _counted_bytes = 0
    """Of its body, among those that are held."""
    _due: set[Expiring] | None = None

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

    def _release(self) -> None:
        """Free what the request holds at its pod."""
        raise NotImplementedError

    def _end_counts(self) -> None:
        if self._due is not None:
            self._due.discard(self)
        if self._counted_bytes:
            self._path.held.release(self._counted_bytes, 0)
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
        self._end_counts()
        client, self.is_left = self._client(), True
        if self.is_begun:
            client.begun = self
            if self.pod_connection is not None:
                self.pod_connection.owner = None
        else:
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
        self._end_counts()
        if self.is_begun:
            self._release()
        elif self.work is not None:
            self.work.end()
        client = self._client()
        client.response_started = self.response_complete
        client.fail()
