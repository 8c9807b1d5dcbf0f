"""Which exchange serves an inference request: an application's, a component's or a model's."""

import random
import time
from dataclasses import dataclass
from typing import Final

from common.content_coding import coding_of
from common.pod_secret import PodSecret
from gateway.authentication.access import make_token
from gateway.dispatch.component_exchange import ComponentCalls, ComponentExchange
from gateway.dispatch.picked_request import PickedRequest
from gateway.dispatch.request import Request
from gateway.dispatch.retries import MAX_WAIT_SHARE
from gateway.errors import BadRequest, NotImplementedHere, NotReady, Rejected, UndeclaredModel
from gateway.http.body import IncomingBody
from gateway.http.error_responses import InferenceClient
from gateway.http.headers import PROTOBUF, RequestHeaders
from gateway.http.openai import parse_model_name
from gateway.http.prompts import has_prompt
from gateway.http.targets import (
    ComponentTarget,
    ModelTarget,
    Verb,
    openai_target,
    target_of_version,
)
from gateway.pool import GatewayPool, GatewayPools
from gateway.request_task import Shutdown
from gateway.routing.decision import Reason
from gateway.routing.route_request import IncomingRequest, select_version
from gateway.settings import GatewaySettings
from registry.domain.application import ApplicationSpec
from registry.domain.model import ModelRecord, ModelSpec
from registry.policy_names import SELECTION

_POLICY_HEADER_OFF: Final = (
    "header x-pilotlight-policy is turned off (--allow-policy-header), as it is by"
    " default where keys or tokens are required"
)


@dataclass(eq=False)
class ExchangeChoice:
    pools: GatewayPools
    settings: GatewaySettings
    components: ComponentCalls
    secret: PodSecret
    is_guarded: bool
    """Requests need a key or a token."""
    shutdown: Shutdown

    def __post_init__(self) -> None:
        self._random = random.Random(0)  # runs of the same requests choose the same pods
        self._sequence = 0
        self._allows_policy_header = self.settings.allow_policy_header
        if self._allows_policy_header is None:
            self._allows_policy_header = not self.is_guarded

    async def exchange_of(
        self, client: InferenceClient, read: RequestHeaders, body: IncomingBody
    ) -> Request | ComponentExchange:
        """The exchange that serves the request. Raises GatewayError."""
        if client.begun is not None:
            return self._begun_request(client, read, body)
        if not client.target.is_named:
            await self._resolve_by_body(client, body)
        target = client.target
        pool = self.pools.only or self.pools.owner_of(target.model)
        state = pool.watch.state
        if target.canaries:
            version = select_version(target.model, target.canaries, read.request_id, state)
            client.target = target = target_of_version(target, version)
        application = state.applications.get(target.model)
        if client.proxy is not None and (application is not None or target.component is not None):
            raise NotImplementedHere(
                f"{target.label} is an application, or has a transformer or explainer: no pod can"
                " be picked for it; send such requests to the gateway itself"
            )
        if application is not None and not self.shutdown.is_draining:
            return self._application_request(pool, application, client, read, body)
        if read.selection_policy is not None:
            raise BadRequest(
                f"header x-pilotlight-policy: {read.selection_policy} is for applications, "
                f"{target.label} is a model"
            )
        record = state.models.get(target.model)
        if record is None or self.shutdown.is_draining:
            pool, record = await self._find_record(target)
            client.target = target = self.pools.targets.with_declared(target)
        if target.component is not None:
            return self._create_component_exchange(client, target.component, read, record, body)
        if target.verb is Verb.EXPLAIN:
            raise NotImplementedHere(f"model {target.label} has no explainer")
        return self._model_request(pool, client, read, record, body)

    def _application_request(
        self,
        pool: GatewayPool,
        application: ApplicationSpec,
        client: InferenceClient,
        read: RequestHeaders,
        body: IncomingBody,
    ) -> Request:
        """Raises BadRequest."""
        from gateway.dispatch.application_request import ApplicationRequest

        is_override = read.policy is not None or read.selection_policy is not None
        if is_override and not self._allows_policy_header:
            raise BadRequest(_POLICY_HEADER_OFF)
        if read.policy is not None:
            raise BadRequest(
                f"header x-pilotlight-policy must be one of {SELECTION} for "
                f"application {application.name}, was {read.policy!r}"
            )
        deadline_s = read.deadline_s or application.deadline_s
        read.deadline_s = deadline_s if application.refuses_late else None  # else it costs utility
        check_wait(client, read.deadline_s)
        arrival = self._arrival(pool, client, read, deadline_s=read.deadline_s)
        arrival.due_s = arrival.arrival_s + deadline_s
        return ApplicationRequest(
            pool.context,
            client,
            read,
            arrival,
            body,
            application,
            read.selection_policy or application.policy,
            live=pool.applications.live(),
            deadline_s=deadline_s,
        )

    async def _resolve_by_body(self, client: InferenceClient, body: IncomingBody) -> None:
        """Set the target of an OpenAI request by the model that its body, or a proxy, names."""
        endpoint = client.target.openai_endpoint or ""
        name = None if client.proxy is None else client.proxy.model_name
        if name is None:
            codings = [value for key, value in client.headers if key == b"content-encoding"]
            coding = codings[0].decode("latin-1") if codings else ""
            name = await body.read_model_field(coding_of(coding))
        model = parse_model_name(name, client.target.model.namespace)
        named = openai_target(model.namespace, model.name, endpoint)
        client.target = self.pools.targets.with_declared(named)

    async def _find_record(self, target: ModelTarget) -> tuple[GatewayPool, ModelRecord]:
        self.shutdown.refuse_new()
        if not self.pools.was_read:
            raise NotReady("the gateway has not read the registry yet", retry_after_s=1.0)
        pool = await self.pools.find_owner(target.model)
        record = pool.watch.state.models.get(target.model)
        if record is None:
            rules, namespace = pool.watch.state.rules, target.model.namespace
            is_admitted = rules is None or rules.admits(namespace)
            why = "" if is_admitted else f": the pool does not admit namespace {namespace!r}"
            raise UndeclaredModel(f"model {target.model} does not exist{why}")
        return pool, record

    def _model_request(
        self,
        pool: GatewayPool,
        client: InferenceClient,
        read: RequestHeaders,
        record: ModelRecord,
        body: IncomingBody,
    ) -> Request:
        if read.policy is not None and not self._allows_policy_header:
            raise BadRequest(_POLICY_HEADER_OFF)
        deadline_s = self.deadline_s(read.deadline_s, record.serving)
        check_wait(client, deadline_s)
        arrival = self._arrival(pool, client, read, deadline_s=deadline_s)
        read.deadline_s = deadline_s
        kind = Request if client.proxy is None else PickedRequest
        request = kind(pool.context, client, read, arrival, body)
        if len(pool.watch.state.pods) > 1:
            request.has_prompt = has_prompt(client.target, record.serving)
        return request

    def _begun_request(
        self, client: InferenceClient, read: RequestHeaders, body: IncomingBody
    ) -> Request:
        """One that was begun by callbacks, wherever the model is by now."""
        pool, spec = self.pools.owner_of(client.target.model), client.begun.route.spec
        read.deadline_s = self.deadline_s(read.deadline_s, spec)
        return Request(pool.context, client, read, client.begun.arrival(), body)

    def _create_component_exchange(
        self,
        client: InferenceClient,
        component: ComponentTarget,
        read: RequestHeaders,
        record: ModelRecord,
        body: IncomingBody,
    ) -> ComponentExchange:
        if (b"content-type", PROTOBUF) in client.headers:
            raise NotImplementedHere(
                f"model {client.target.label} has a transformer, to which the gateway sends HTTP"
                " only: send the request by HTTP"
            )
        read.deadline_s = self.deadline_s(read.deadline_s, record.serving)
        check_wait(client, read.deadline_s)
        token = b""
        if self.is_guarded:
            until_s = time.time() + (read.deadline_s or self.settings.request_timeout)
            token = make_token(self.secret, client.target.model, until_s)
        return ComponentExchange(
            self.components,
            client,
            component,
            read,
            body,
            callback_token=token,
            stall_s=self.settings.body_timeout,
        )

    def deadline_s(self, asked_s: float | None, spec: ModelSpec) -> float | None:
        """The request's time: the caller's, at most the gateway's, or else the model's."""
        own_s = spec.policy.deadline_s
        if asked_s is None:
            return own_s
        return min(asked_s, max(self.settings.request_timeout, own_s or 0.0))

    def _arrival(
        self,
        pool: GatewayPool,
        client: InferenceClient,
        read: RequestHeaders,
        *,
        deadline_s: float | None,
    ) -> IncomingRequest:
        draw, sequence = self.draw(read)
        now_s = pool.watch.registry_now_s() - client.waited_s
        until_s = None if deadline_s is None else now_s + deadline_s
        model = client.target.model
        return IncomingRequest(read.request_id, model, now_s, draw, sequence, read.policy, until_s)

    def draw(self, read: RequestHeaders) -> tuple[float, int]:
        """A new request's random number, and its own: one of each, whatever serves it."""
        self._sequence += 1
        draws = self._random if read.seed is None else random.Random(read.seed)
        return draws.random(), self._sequence


def check_wait(client: InferenceClient, deadline_s: float | None) -> None:
    """Raises Rejected for a request that has waited too long to be begun, before any work for it.

    Where more requests come than the gateway can route, they wait in its accept queue and for their
    turn. With deadlines that queue would become as long as they are: all responses would be late.
    """
    if deadline_s is not None and client.waited_s > MAX_WAIT_SHARE * deadline_s:
        raise Rejected(
            Reason.DEADLINE,
            f"the request had not begun {client.waited_s:.3f} s after it came: too late for its"
            f" deadline of {deadline_s:g} s",
            retry_after_s=1.0,
        )
