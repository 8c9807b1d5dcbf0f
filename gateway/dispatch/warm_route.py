"""What follows from a request's head alone, for requests to models that are warm."""

from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf
from typing import Final

from common.pod_secret import PodSecret
from gateway.authentication.access import without_credentials
from gateway.dispatch.pod_request import MAX_HEADS, RequestContext, head_beginning
from gateway.errors import GatewayError
from gateway.http.body import HeldBodies
from gateway.http.framing import KnownHead
from gateway.http.headers import Headers, RequestHeaders, read_headers
from gateway.http.targets import ModelTarget, Verb
from gateway.request_task import Deadlines, Shutdown
from gateway.routing.route_request import is_plain
from gateway.telemetry.explanations import Explanations
from registry.domain.cluster import ClusterState
from registry.domain.estimates import size_class
from registry.domain.model import ModelSpec

Authorised = Callable[[ModelTarget, Headers], ModelTarget | None]

_NO_HEAD: Final = (None, b"")
ALLOWED_S: Final = 1.0
"""A credential that ends, or is taken back, opens nothing more after this time."""
_VERBS: Final = (Verb.PREDICT, Verb.INFER, None)


@dataclass(eq=False, slots=True)
class WarmRoute:
    """Of one head, until models change."""

    models_version: int
    is_usual: bool
    """Whether `WarmRequest` may serve requests with the head."""
    is_plain: bool
    """Whether the soonest pod may be certain, without its model's policy."""
    target: ModelTarget
    spec: ModelSpec
    key: str
    content_length: int
    size_class: int | None
    deadline_s: float | None
    read: RequestHeaders
    allowed_until_s: float
    """Loop time until which the head's credential, if any is needed, need not be looked at."""
    _heads: dict[str, tuple[bytes, bytes]] = field(default_factory=dict)
    """By address of a pod: the pods' secret, and the beginning of the head with it."""

    def head_beginning(self, address: str, secret: PodSecret) -> bytes:
        """See `pod_request`; kept, as it changes with the model and the pods' secret alone."""
        line = secret.header_line
        known_line, beginning = self._heads.get(address, _NO_HEAD)
        if known_line is not line:
            beginning = head_beginning(
                self.target, self.read.forwarded, self.spec, address, line, self.content_length
            )
            if len(self._heads) >= MAX_HEADS:
                self._heads.clear()
            self._heads[address] = line, beginning
        return beginning


@dataclass(frozen=True, slots=True)
class WarmPath:
    """What all such requests of a gateway use."""

    context: RequestContext
    explanations: Explanations
    state: ClusterState
    registry_now_s: Callable[[], float]
    draw: Callable[[RequestHeaders], tuple[float, int]]
    """A new request's random number, and its own."""
    routes: "WarmRoutes"
    deadlines: Deadlines
    shutdown: Shutdown
    held: HeldBodies
    request_timeout_s: float


class WarmRoutes:
    def __init__(
        self,
        state: ClusterState,
        resolve_target: Callable[[bytes, bytes], ModelTarget | None],
        deadline_of: Callable[[float | None, ModelSpec], float | None],
        *,
        max_body_bytes: int,
        authorised: Authorised | None = None,
    ) -> None:
        """`deadline_of`: a request's time, by what its header says and its model.

        `max_body_bytes`: of bodies that stay in memory. `authorised`: the target that the headers
        authorise a request to, or a GatewayError; it returns None if that is not known at once.
        """
        self._state = state
        self._resolve_target = resolve_target
        self._deadline_of = deadline_of
        self._max_body_bytes = max_body_bytes
        self._authorised = authorised

    def route_of(self, head: KnownHead, loop_s: float) -> WarmRoute | None:
        """None: there is no such model, or requests with the head are or may be refused."""
        route: WarmRoute | None = head.route
        version = self._state.models_version
        if route is None or route.models_version != version or route.allowed_until_s <= loop_s:
            route = head.route = self._create_route(head, loop_s)
        return route

    def _create_route(self, head: KnownHead, loop_s: float) -> WarmRoute | None:
        state, target = self._state, self._resolve_target(head.path, head.host)
        if target is None or head.content_length > self._max_body_bytes:
            return None
        headers, allowed_until_s = head.headers, inf
        try:
            if self._authorised is not None:
                target = self._authorised(target, headers)
                headers, allowed_until_s = without_credentials(headers), loop_s + ALLOWED_S
            read = read_headers(headers)
        except GatewayError:
            return None
        record = None if target is None else state.models.get(target.model)
        if target is None or record is None:
            return None
        spec = record.serving
        is_usual = not (
            read.policy or read.selection_policy or read.step_header or read.secret or read.place_at
        )
        is_model = (
            target.is_named
            and target.verb in _VERBS
            and target.component is None
            and not target.canaries
            and target.model not in state.applications
        )
        return WarmRoute(
            state.models_version,
            is_usual and is_model and not spec.logger,
            is_plain(spec),
            target,
            spec,
            spec.key,
            head.content_length,
            size_class(head.content_length),
            self._deadline_of(read.deadline_s, spec),
            read,
            allowed_until_s,
        )
