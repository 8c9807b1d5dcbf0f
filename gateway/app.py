"""The gateway's application: inference without ASGI and FastAPI, which would cost a multiple.

Requests other than inference are authorised, then served by FastAPI.
"""

import asyncio
import logging
import re
import time
from dataclasses import replace
from functools import partial
from typing import Final
from urllib.parse import unquote

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from common.http_headers import Headers
from common.tls import PartTls
from gateway.authentication.access import Access, credential, is_callback, without_credentials
from gateway.dispatch.component_exchange import ComponentExchange
from gateway.dispatch.pod_request import WarmPath, WarmRoutes
from gateway.dispatch.request import Request
from gateway.dispatch.warm_request import take
from gateway.errors import (
    BadRequest,
    ClientClosedRequest,
    GatewayError,
    MethodNotAllowed,
    ShuttingDown,
)
from gateway.handler_selection import ExchangeChoice
from gateway.http.body import BodyLimits, HeldBodies, IncomingBody
from gateway.http.client_request import closing_connection
from gateway.http.error_responses import InferenceClient, respond_with_error, send_error
from gateway.http.headers import SECRET, RequestHeaders, read_headers
from gateway.http.openai import is_openai
from gateway.http.routes import (
    ModelPath,
    graph_path,
    is_inference,
    parse_path,
    refuse_other_name,
    target_of,
)
from gateway.http.targets import ModelTarget, target_in_namespace
from gateway.telemetry.request_telemetry import RequestTelemetry

logger = logging.getLogger(__name__)


class Inference:
    def __init__(
        self,
        exchanges: ExchangeChoice,
        telemetry: RequestTelemetry,
        access: Access | None,
        limits: BodyLimits,
        held: HeldBodies,
    ) -> None:
        """`access`: None if requests need neither a key nor a token."""
        self._exchanges, self._secret = exchanges, exchanges.secret
        self.pools, self.shutdown = exchanges.pools, exchanges.shutdown
        self._request_timeout_s = exchanges.settings.request_timeout
        self._telemetry, self._tracer = telemetry, telemetry.tracer
        self.access = access
        self._body_limits, self.held_bodies = limits, held
        self.warm_path = None
        """None: with tracing or several pools no request can go by callbacks alone."""
        if (pool := self.pools.only) is not None and telemetry.tracer is None:
            routes = WarmRoutes(
                pool.watch.state,
                self.pools.resolve_target,
                exchanges.deadline_s,
                max_body_bytes=min(limits.max_bytes, limits.buffer_bytes),
                authorised=None if access is None else partial(self._authorised_now, access),
            )
            self.warm_path = WarmPath(
                pool.context,
                pool.explanations,
                pool.watch.state,
                pool.watch.registry_now_s,
                exchanges.draw,
                routes,
                exchanges.shutdown,
                held,
                self._request_timeout_s,
            )

    async def infer(self, client: InferenceClient) -> None:
        if self.shutdown.is_leaving:
            client.keep_alive = False
        request_id, started_s = "", client.loop.time()
        body: IncomingBody | None = None
        exchange: Request | ComponentExchange | None = None
        try:
            read = self._read_begun(client) or await self._read(client)
            request_id = read.request_id
            if self._tracer is not None:
                self._tracer.start(client.headers, read)
            if read.step_header and not self._secret.accepts(read.secret):
                name = read.step_header.decode()
                raise BadRequest(f"header {name} is for schedulers of workflows")
            if client.begun is not None:
                client.begun.release_body()  # at once counted again
            body = IncomingBody(client, read.content_length, self._body_limits, self.held_bodies)
            exchange = await self._exchanges.exchange_of(client, read, body)
            await self._run_limited(exchange, client, read, body)
        except ClientClosedRequest:
            self._telemetry.client_disconnected()
        except GatewayError as error:
            if client.response_started:  # the response was counted when it started
                logger.warning("response broke off", extra={"request_id": request_id})
                client.abort_response(error)
                return
            label, policy = "", None
            if exchange is not None:
                label, policy = client.target.label, exchange.policy
            took_s = client.loop.time() - started_s
            self._telemetry.failed(label, policy, error, request_id, took_s=took_s)
            respond_with_error(client, error, request_id, self._telemetry.gateway)
        finally:
            if body is not None:
                body.close()
            if self._tracer is not None:
                self._tracer.end(request_id)

    def _read_begun(self, client: InferenceClient) -> RequestHeaders | None:
        if client.begun is None:
            return None
        read: RequestHeaders = client.begun.route.read.with_id()
        read.request_id = client.begun.request_id
        return read

    async def _read(self, client: InferenceClient) -> RequestHeaders:
        """The request's headers, authorised. Raises GatewayError."""
        headers, head = client.headers, client.head
        if self.access is None:
            if head is None:
                return read_headers(headers).with_id()
            head.read = head.read or read_headers(headers)
            return head.read.with_id()
        if self._is_callback(client):
            client.target = self.pools.targets.as_direct(client.target)
        elif not self._is_from_platform(headers):
            client.target = await self._authorised(self.access, client.target, headers)
        return read_headers(without_credentials(headers)).with_id()

    def _is_callback(self, client: InferenceClient) -> bool:
        """True if the model's own transformer or explainer sent the request."""
        token = credential(client.headers)
        return is_callback(self._secret, token, client.target.model, time.time())

    def _is_from_platform(self, headers: Headers) -> bool:
        """True if a scheduler of workflows sent the request, which has authorised its run."""
        secret = self._secret
        if not secret.is_required:
            return False
        return any(name == SECRET and secret.accepts(value) for name, value in headers)

    def _authorised_now(
        self, access: Access, target: ModelTarget, headers: Headers
    ) -> ModelTarget | None:
        """As `_authorised` without waiting; None if it would wait."""
        if not access.knows(headers):
            return None
        work = self._authorised(access, target, headers)
        try:
            work.send(None)
        except StopIteration as end:
            authorised: ModelTarget = end.value
            return authorised
        work.close()
        return None

    async def _authorised(
        self, access: Access, target: ModelTarget, headers: Headers
    ) -> ModelTarget:
        """The target that the headers authorise a request to.

        Raises Unauthorized, Forbidden, NotReady. A Host that names another tenant's model is
        ignored: an error would disclose that the model exists.
        """
        if target.without_host is not None and not await access.is_allowed(
            target.model.namespace, headers
        ):
            target = target.without_host
        if target.is_plain:
            namespace = await access.implied_namespace(headers)
            if namespace != target.model.namespace:
                target = self.pools.targets.with_declared(target_in_namespace(target, namespace))
        await access.check(target.model.namespace, headers)
        return target

    async def _run_limited(
        self,
        exchange: Request | ComponentExchange,
        client: InferenceClient,
        read: RequestHeaders,
        body: IncomingBody,
    ) -> None:
        """Run the exchange until it ends, its client disconnects or its time limit passes."""
        now_s, run = client.loop.time(), client.run
        until_s = now_s + self._request_timeout_s
        if read.deadline_s:
            until_s = now_s + read.deadline_s - client.waited_s
        run.limit(until_s)
        client.on_disconnect = run.on_disconnect
        try:
            if client.disconnected:  # before the task was begun
                if client.begun is None:
                    raise ClientClosedRequest
                run.on_disconnect()
            await exchange.run(until_s)
        except asyncio.CancelledError:
            cause = run.take_cause(is_draining=self.shutdown.is_draining)
            if cause is None:
                raise
            if cause is ShuttingDown:
                raise ShuttingDown(
                    f"the gateway shut down before the {exchange.awaited} responded",
                    retry_after_s=1.0,
                ) from None
            limit = "deadline" if read.deadline_s else "gateway's request timeout"
            raise cause(f"the {limit} passed before the {exchange.awaited} responded") from None
        finally:
            run.unlimit()
            client.on_disconnect = None


CONSOLE: Final = "/console"
EXPLANATIONS: Final = "/pilotlight/v1/explain/"
_RUN: Final = re.compile(r"/v1/workflows/[^/]+(?::|%3[Aa])run")


class GatewayApp:
    """ASGI application for everything but inference; `infer` serves inference requests."""

    def __init__(self, api: ASGIApp, inference: Inference, tls: PartTls) -> None:
        self._api, self.tls = api, tls
        self.infer, self.held_bodies = inference.infer, inference.held_bodies
        path = inference.warm_path
        self.take_warm = None if path is None else partial(take, path)
        self.pools, self.access = inference.pools, inference.access
        self.shutdown = inference.shutdown
        self.resolve_target = self.pools.resolve_target

    @property
    def is_ready(self) -> bool:
        """Requests are accepted: the registry was read and the gateway does not shut down."""
        return self.pools.was_read and not self.shutdown.has_begun

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._api(scope, receive, send)
            return
        if self.shutdown.is_leaving:
            send = _closing_connection(send)
        if scope["method"] == "HEAD":  # the server drops the body
            scope = {**scope, "method": "GET"}
        path: str = scope["path"]
        if b"%" in scope["raw_path"]:
            path = scope["raw_path"].decode("latin-1")
        try:
            if scope["path"] == CONSOLE or scope["path"].startswith(f"{CONSOLE}/"):
                access = self.access
                viewer = None if access is None else await access.viewer(scope["headers"])
                scope["pilotlight.viewer"] = viewer
            else:
                await self._resolve(scope, path)
        except GatewayError as error:
            await send_error(send, error, is_openai=is_openai(path))
            return
        await self._api(scope, receive, send)

    async def _resolve(self, scope: Scope, path: str) -> None:
        """Write namespace, name and path of the request to the scope, once authorised."""
        host: str = dict(scope["headers"]).get(b"host", b"").decode("latin-1")
        model_path = parse_path(path, host, self.pools.names)
        if path == "/" and model_path.name is None and scope["method"] == "POST":
            model_path = graph_path(host)
        if self.access is not None:
            model_path = await self._authorise_path(self.access, path, model_path, scope)
        if _is_action(model_path.path) and scope["method"] != "POST":
            raise MethodNotAllowed(scope["method"], path, ("POST",))
        if is_inference(model_path.path):
            target_of(model_path)  # raises the error that kept it from `infer`
        else:
            refuse_other_name(model_path)
        scope["pilotlight.namespace"] = model_path.namespace
        scope["pilotlight.name"] = model_path.name
        scope["pilotlight.called"] = model_path.called
        scope["path"], scope["raw_path"] = unquote(model_path.path), model_path.path.encode()

    async def _authorise_path(
        self, access: Access, path: str, model_path: ModelPath, scope: Scope
    ) -> ModelPath:
        """The path that the caller may use; a Host that names another tenant's model is ignored."""
        headers: Headers = scope["headers"]
        if model_path.is_by_host and not await access.is_allowed(model_path.namespace, headers):
            model_path = replace(parse_path(path, "", None), is_plain=False)
        if model_path.is_plain:
            namespace = await access.implied_namespace(headers)
            model_path = replace(model_path, namespace=namespace)
        own_path = unquote(model_path.path)
        if own_path == "/" and model_path.name is not None and scope["method"] == "POST":
            await access.check(model_path.namespace, headers)  # runs an InferenceGraph
        elif own_path.startswith(EXPLANATIONS):
            scope["pilotlight.namespaces"] = await access.viewed_namespaces(headers)
        else:
            await access.check_path(own_path, model_path.namespace, headers)
        return model_path


def _closing_connection(send: Send) -> Send:
    async def send_closing(message: Message) -> None:
        is_start = message["type"] == "http.response.start"
        await send(closing_connection(message) if is_start else message)

    return send_closing


def _is_action(path: str) -> bool:
    """True for a path, without its prefix, that takes POST only: an inference or a workflow's run.

    FastAPI alone would take some of them for a model's or workflow's name.
    """
    return is_inference(path) or _RUN.fullmatch(path) is not None
