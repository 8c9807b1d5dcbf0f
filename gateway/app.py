"""The gateway's application: inference requests directly, other requests through FastAPI.

Inference requests skip ASGI, FastAPI's routing, validation and middleware, which would cost a
multiple of the gateway's own work.
"""

from __future__ import annotations

import asyncio
import logging
import random
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from gateway.authentication.access import without_credentials
from gateway.dispatch.application_exchange import ApplicationCall, ApplicationExchange
from gateway.dispatch.cancellation import RequestCancellation
from gateway.dispatch.exchange import Exchange
from gateway.dispatch.inference_call import InferenceCall
from gateway.errors import (
    BadRequest,
    BodyTooSlow,
    GatewayError,
    NotReady,
    ShuttingDown,
    UndeclaredModel,
)
from gateway.http.body import IncomingBody
from gateway.http.client_request import ClientClosedRequest
from gateway.http.error_responses import respond_with_error, send_error
from gateway.http.headers import SECRET, read_headers
from gateway.http.openai import parse_model_name
from gateway.http.routes import (
    graph_path,
    is_inference,
    openai_target,
    parse_path,
    target_of,
    target_of_version,
)
from gateway.routing.route_request import IncomingRequest
from gateway.selection.select_version import select_version
from registry.domain.application import SelectionPolicy

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from gateway.authentication.access import Access
    from gateway.http.body import BodyLimits
    from gateway.http.headers import Headers, RequestHeaders
    from gateway.http.held_bodies import HeldBodies
    from gateway.http.inference_client import InferenceClient
    from gateway.http.routes import ModelPath, ModelTarget
    from gateway.pool import GatewayPool, GatewayPools
    from gateway.settings import GatewaySettings
    from gateway.telemetry.request_telemetry import RequestTelemetry
    from gateway.upstream.pod_connection import PodConnectionPool
    from registry.domain.application import ApplicationSpec
    from registry.domain.model import ModelRecord

    Scope = dict[str, Any]
    Receive = Callable[[], Awaitable[dict[str, Any]]]
    Send = Callable[[dict[str, Any]], Awaitable[None]]
    ASGIApp = Callable[[Scope, Receive, Send], Awaitable[None]]

logger = logging.getLogger(__name__)

_POLICY_HEADER_OFF: Final = (
    "header x-pilotlight-policy is turned off (--allow-policy-header), as it is by"
    " default where keys or tokens are required"
)


CONSOLE: Final = "/console"


class GatewayApp:
    """ASGI application for everything but inference; `infer` serves inference requests."""

    def __init__(
        self, api: ASGIApp, pools: GatewayPools, settings: GatewaySettings, *,
        connections: PodConnectionPool, telemetry: RequestTelemetry, access: Access | None,
        limits: BodyLimits, held: HeldBodies,
    ) -> None:  # fmt: skip
        """`access`: None if requests need neither a key nor a token."""
        self._api = api
        self.pools = pools
        self._settings = settings
        self._secret = connections.secret
        self.tls = connections.tls
        self._telemetry = telemetry
        self._body_limits, self._held_bodies = limits, held
        self._random = random.Random(settings.seed)
        self._sequence = 0
        self.access = access
        self._allows_policy_header = settings.allow_policy_header
        if settings.allow_policy_header is None:
            self._allows_policy_header = self.access is None
        self._tracer = telemetry.tracer
        self.resolve_target = pools.resolve_target
        self.is_leaving = False
        """Requests are served, but each response closes its connection."""
        self.is_draining = False
        """New requests are rejected."""

    @property
    def is_ready(self) -> bool:
        """Requests are accepted: the registry was read and the gateway does not shut down."""
        is_ending = self.is_leaving or self.is_draining
        return self.pools.was_read and not is_ending

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._api(scope, receive, send)
            return
        if self.is_leaving:
            send = _closing_connection(send)
        path: str = scope["path"]
        if path == CONSOLE or path.startswith(f"{CONSOLE}/"):
            await self._show_console(scope, receive, send)
            return
        try:
            if b"%" in scope["raw_path"]:
                path = scope["raw_path"].decode("latin-1")
            model_path = parse_path(path, _host(scope), self.pools.names)
            if path == "/" and model_path.name is None and scope["method"] == "POST":
                model_path = graph_path(_host(scope))
            if self.access is not None:
                model_path = await self._authorise_path(self.access, path, model_path, scope)
            if scope["method"] == "POST" and is_inference(model_path.path):
                target_of(model_path)  # raises the error for which it was not resolved
        except GatewayError as error:
            await send_error(send, error, is_openai="/openai/v1/" in path)
            return
        scope["pilotlight.namespace"] = model_path.namespace
        scope["pilotlight.name"] = model_path.name
        scope["path"], scope["raw_path"] = unquote(model_path.path), model_path.path.encode()
        await self._api(scope, receive, send)

    async def _show_console(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            access = self.access
            viewer = None if access is None else await access.viewer(scope["headers"])
        except GatewayError as error:
            await send_error(send, error, is_openai=False)
            return
        scope["pilotlight.viewer"] = viewer
        await self._api(scope, receive, send)

    async def infer(self, client: InferenceClient) -> None:
        if self.is_leaving:
            client.keep_alive = False
        request_id = ""
        body: IncomingBody | None = None
        exchange: Exchange | None = None
        try:
            headers = client.headers
            if self.access is not None:
                if not self._is_from_platform(headers):
                    await self._authorise(self.access, client)
                headers = without_credentials(headers)
            read = read_headers(headers)
            request_id = read.request_id
            if self._tracer is not None:
                self._tracer.start(headers, read)
            if read.place_at and not self._secret.accepts(read.secret):
                raise BadRequest("header x-pilotlight-place-at is for schedulers of workflows")
            body = IncomingBody(client, read.content_length, self._body_limits, self._held_bodies)
            if not client.target.is_named:
                await self._resolve_by_body(client, body)
            target = client.target
            pool = self.pools.owner_of(target.model)
            state = pool.watch.state
            if target.canaries:
                version = select_version(target.model, target.canaries, request_id, state)
                client.target = target_of_version(target, version)
            application = state.applications.get(client.target.model)
            if application is not None and not self.is_draining:
                exchange = self._create_application_exchange(pool, application, client, read, body)
            else:
                if read.selection_policy is not None:
                    raise BadRequest(
                        f"header x-pilotlight-policy: {read.selection_policy} is for applications, "
                        f"{client.target.label} is a model"
                    )
                record = state.models.get(client.target.model)
                if record is None or self.is_draining:
                    pool, record = await self._find_record(client.target)
                exchange = self._create_exchange(pool, client, read, record, body)
            await self._run_cancellable(exchange, client, read, body)
        except ClientClosedRequest:
            self._telemetry.client_disconnected()
        except GatewayError as error:
            if client.response_started:  # the response was counted when it started
                logger.warning("response broke off", extra={"request_id": request_id})
                client.abort_response()
                return
            label, policy = "", None
            if exchange is not None:
                label, policy = client.target.label, exchange.policy
            self._telemetry.failed(label, policy, error, request_id)
            respond_with_error(client, error, request_id, self._telemetry.gateway)
        finally:
            if body is not None:
                body.close()
            if self._tracer is not None:
                self._tracer.end(request_id)

    def _is_from_platform(self, headers: Headers) -> bool:
        """A scheduler of workflows sent it, which has authorised the run that it belongs to."""
        secret = self._secret
        if not secret.is_required:
            return False
        return any(name == SECRET and secret.accepts(value) for name, value in headers)

    async def _authorise(self, access: Access, client: InferenceClient) -> None:
        """Raises Unauthorized, Forbidden, NotReady.

        A Host that names another tenant's model is ignored: an error would disclose that the model
        exists.
        """
        target = client.target
        if target.without_host is not None and not await access.is_allowed(
            target.model.namespace, client.headers
        ):
            client.target = target = target.without_host
        await access.check(target.model.namespace, client.headers)

    async def _authorise_path(
        self, access: Access, path: str, model_path: ModelPath, scope: Scope
    ) -> ModelPath:
        """As `_authorise`, for requests that are not inference."""
        headers: Headers = scope["headers"]
        if model_path.is_by_host and not await access.is_allowed(model_path.namespace, headers):
            model_path = parse_path(path, "", ())
        own_path = unquote(model_path.path)
        if own_path == "/" and model_path.name is not None and scope["method"] == "POST":
            await access.check(model_path.namespace, headers)  # runs an InferenceGraph
        else:
            await access.check_path(own_path, model_path.namespace, headers)
        return model_path

    def _create_application_exchange(
        self, pool: GatewayPool, application: ApplicationSpec, client: InferenceClient,
        read: RequestHeaders, body: IncomingBody,
    ) -> ApplicationExchange:  # fmt: skip
        """Raises BadRequest."""
        is_override = read.policy is not None or read.selection_policy is not None
        if is_override and not self._allows_policy_header:
            raise BadRequest(_POLICY_HEADER_OFF)
        if read.policy is not None:
            raise BadRequest(
                f"header x-pilotlight-policy must be one of {', '.join(SelectionPolicy)} for "
                f"application {application.name}, was {read.policy!r}"
            )
        deadline_s = read.deadline_s or application.deadline_s
        read.deadline_s = deadline_s if application.refuses_late else None  # else it costs utility
        request = self._incoming_request(pool, client, read, deadline_s=read.deadline_s)
        call = ApplicationCall(
            pool.context, client, read, request, body, pool.selector, pool.watch.registry_now_s
        )
        return ApplicationExchange(
            call, client, body, pool.context, pool.sneak_peek, application,
            read.selection_policy or application.policy, deadline_s=deadline_s,
            stall_s=self._settings.body_timeout,
        )  # fmt: skip

    async def _resolve_by_body(self, client: InferenceClient, body: IncomingBody) -> None:
        """Set the target of an OpenAI request by the model that its body names."""
        endpoint = client.target.openai_endpoint or ""
        model = parse_model_name(await body.read_model_field())
        named = openai_target(model.namespace, model.name, endpoint)
        client.target = self.pools.owner_of(named.model).targets.with_canaries(named)

    async def _find_record(self, target: ModelTarget) -> tuple[GatewayPool, ModelRecord]:
        if self.is_draining:
            raise ShuttingDown("the gateway is shutting down", retry_after_s=1.0)
        if not self.pools.was_read:
            raise NotReady("the gateway has not read the registry yet", retry_after_s=1.0)
        pool = await self.pools.find_owner(target.model)
        record = pool.watch.state.models.get(target.model)
        if record is None:
            raise UndeclaredModel(f"model {target.model} does not exist")
        return pool, record

    def _create_exchange(
        self, pool: GatewayPool, client: InferenceClient, read: RequestHeaders, record: ModelRecord,
        body: IncomingBody,
    ) -> Exchange:  # fmt: skip
        if read.policy is not None and not self._allows_policy_header:
            raise BadRequest(_POLICY_HEADER_OFF)
        own_s = record.serving.policy.deadline_s
        deadline_s = own_s
        if read.deadline_s is not None:
            deadline_s = min(read.deadline_s, max(self._settings.request_timeout, own_s or 0.0))
        request = self._incoming_request(pool, client, read, deadline_s=deadline_s)
        read.deadline_s = deadline_s
        call = InferenceCall(pool.context, client.target, read, request, body)
        stall_s = self._settings.body_timeout
        return Exchange(call, client, body, self._telemetry, stall_s=stall_s)

    def _incoming_request(
        self, pool: GatewayPool, client: InferenceClient, read: RequestHeaders, *,
        deadline_s: float | None,
    ) -> IncomingRequest:  # fmt: skip
        self._sequence += 1
        now_s = pool.watch.registry_now_s()
        draws = self._random if read.seed is None else random.Random(read.seed)
        return IncomingRequest(
            id=read.request_id,
            model=client.target.model,
            arrival_s=now_s,
            draw=draws.random(),
            sequence=self._sequence,
            policy=read.policy,
            deadline_s=None if deadline_s is None else now_s + deadline_s,
        )

    async def _run_cancellable(
        self, exchange: Exchange, client: InferenceClient, read: RequestHeaders, body: IncomingBody
    ) -> None:
        """Run the exchange until it ends, its client disconnects or a timeout passes.

        One cancellation for all causes: `asyncio.timeout` and a task that watches the client would
        cost more than the rest of the bookkeeping.
        """
        now_s = client.loop.time()
        until_s = now_s + (read.deadline_s or self._settings.request_timeout)
        cancellation = RequestCancellation(
            client.loop, body, until_s, now_s + self._settings.body_timeout
        )
        client.on_disconnect = cancellation.on_disconnect
        try:
            if client.disconnected:  # before this task ran
                raise ClientClosedRequest
            await exchange.run(until_s)
        except asyncio.CancelledError:
            cause = cancellation.take_cause(is_draining=self.is_draining)
            if cause is None:
                raise
            if cause is ShuttingDown:
                raise ShuttingDown(
                    "the gateway shut down before the pod responded", retry_after_s=1.0
                ) from None
            if cause is BodyTooSlow:
                raise body.timeout_error() from None
            limit = "deadline" if read.deadline_s else "gateway's request timeout"
            raise cause(f"the {limit} passed before the pod responded") from None
        finally:
            cancellation.close()
            client.on_disconnect = None


def _closing_connection(send: Send) -> Send:
    """`send`, with the header at which uvicorn closes the connection after the response."""

    async def send_closing(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message["headers"], (b"connection", b"close")]}
        await send(message)

    return send_closing


def _host(scope: Scope) -> str:
    for name, value in scope["headers"]:
        if name == b"host":
            text: str = value.decode("latin-1")
            return text
    return ""
