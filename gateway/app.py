"""The gateway's front: inference by hand, everything else by FastAPI.

Inference requests skip ASGI, routing, validation and middleware, whose cost would be a multiple of
the gateway's own.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from gateway.authentication.access import create_access, without_credentials
from gateway.dispatch.cancellation import RequestCancellation
from gateway.dispatch.exchange import Exchange
from gateway.errors import (
    BadRequest,
    BodyTooSlow,
    GatewayError,
    NotReady,
    ShuttingDown,
    UnknownModel,
)
from gateway.http import openai
from gateway.http.body import BodyLimits, RequestBody
from gateway.http.client_request import ClientDisconnected
from gateway.http.error_responses import respond_with_error, send_error
from gateway.http.headers import read_headers
from gateway.http.routes import (
    TargetResolver,
    is_inference,
    openai_target,
    parse_path,
    target_of,
    target_of_version,
)
from gateway.routing.route_request import IncomingRequest
from gateway.selection.select_version import select_version

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from gateway.authentication.access import Access
    from gateway.dispatch.exchange import ExchangeContext
    from gateway.http.client_request import ClientRequest
    from gateway.http.headers import Headers, RequestHeaders
    from gateway.http.routes import ModelPath, ModelTarget
    from gateway.settings import GatewaySettings
    from registry.domain.model import ModelRecord
    from registry.redis.watch import ClusterWatch

    Scope = dict[str, Any]
    Receive = Callable[[], Awaitable[dict[str, Any]]]
    Send = Callable[[dict[str, Any]], Awaitable[None]]
    ASGIApp = Callable[[Scope, Receive, Send], Awaitable[None]]

logger = logging.getLogger(__name__)


class GatewayApp:
    """The ASGI application of the gateway, and what serves inference beside it."""

    def __init__(
        self, api: ASGIApp, tools: ExchangeContext, watch: ClusterWatch, settings: GatewaySettings
    ) -> None:
        self._api = api
        self._tools = tools
        self._watch = watch
        self._settings = settings
        self._body_limits = BodyLimits(
            settings.max_body_bytes, settings.buffer_bytes, settings.body_timeout
        )
        self._random = random.Random(settings.seed)
        self._sequence = 0
        self.access = create_access(
            api_keys=settings.api_keys,
            token_issuers=settings.token_issuers,
            token_leeway_s=settings.token_leeway,
        )
        """None: nobody needs a key or a token."""
        self._targets = TargetResolver(watch.state, is_guarded=self.access is not None)
        self.target = self._targets.find
        """The target of a path and Host, if they name one rightly."""
        self.is_draining = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one ASGI scope: whatever is no inference."""
        if scope["type"] != "http":
            await self._api(scope, receive, send)
            return
        path: str = scope["path"]
        try:
            if b"%" in scope["raw_path"]:
                path = scope["raw_path"].decode("latin-1")
            place = parse_path(path, _host(scope), self._watch.state.models)
            if self.access is not None:
                place = await self._admitted(self.access, path, place, scope["headers"])
            if scope["method"] == "POST" and is_inference(place.path):
                target_of(place)  # it was no target, and this says why
        except GatewayError as error:
            await send_error(send, error, is_openai="/openai/v1/" in path)
            return
        scope["pilotlight.namespace"] = place.namespace
        scope["path"], scope["raw_path"] = unquote(place.path), place.path.encode()
        await self._api(scope, receive, send)

    async def infer(self, client: ClientRequest) -> None:
        """Serve one inference request."""
        request_id = ""
        exchange: Exchange | None = None
        try:
            headers = client.headers
            if self.access is not None:
                await self._admit(self.access, client)
                headers = without_credentials(headers)
            read = read_headers(headers)
            request_id = read.request_id
            body = RequestBody(client, read.content_length, self._body_limits)
            if not client.target.is_named:
                await self._name_by_body(client, body)
            target = client.target
            if target.canaries:
                version = select_version(
                    target.model, target.canaries, request_id, self._watch.state
                )
                client.target = target_of_version(target, version)
            record = self._watch.state.models.get(client.target.model)
            if record is None or self.is_draining:
                record = await self._record(client.target)
            exchange = self._exchange(client, read, record, body)
            await self._run_while_wanted(exchange, client, read)
        except ClientDisconnected:
            self._tools.recorder.client_left()
        except GatewayError as error:
            if client.response_started:  # and was counted
                logger.warning("an answer broke off", extra={"request_id": request_id})
                client.break_off()
                return
            if exchange is not None:
                placement = exchange.placement
                policy = placement.policy.value if placement else None
                self._tools.recorder.failed(client.target.label, policy, error)
            respond_with_error(client, error, request_id)

    async def _admit(self, access: Access, client: ClientRequest) -> None:
        """Check who asks. Raises Unauthorized, Forbidden, NotReady.

        A Host that names another tenant's model names nothing: else it would tell what there is.
        """
        target = client.target
        if target.without_host is not None and not await access.may(
            target.model.namespace, client.headers
        ):
            client.target = target = target.without_host
        await access.check(target.model.namespace, client.headers)

    async def _admitted(
        self, access: Access, path: str, place: ModelPath, headers: Headers
    ) -> ModelPath:
        """As `_admit`, for the place of what is no inference."""
        if place.is_by_host and not await access.may(place.namespace, headers):
            place = parse_path(path, "", ())
        await access.check_path(unquote(place.path), place.namespace, headers)
        return place

    async def _name_by_body(self, client: ClientRequest, body: RequestBody) -> None:
        """Find the target of one of OpenAI's calls in its body."""
        call = client.target.openai_call or ""
        model = openai.model_named(await openai.model_of_body(body))
        named = openai_target(model.namespace, model.name, call)
        client.target = self._targets.with_canaries(named)

    async def _record(self, target: ModelTarget) -> ModelRecord:
        if self.is_draining:
            raise ShuttingDown("the gateway is shutting down", retry_after_s=1.0)
        if self._watch.age_s() == math.inf:
            raise NotReady("the gateway has not read the registry yet", retry_after_s=1.0)
        record = await self._watch.find_model(target.model)
        if record is None:
            raise UnknownModel(f"model {target.model} does not exist")
        return record

    def _exchange(
        self,
        client: ClientRequest,
        read: RequestHeaders,
        record: ModelRecord,
        body: RequestBody,
    ) -> Exchange:
        if read.policy is not None and not self._settings.allow_policy_header:
            raise BadRequest("header x-pilotlight-policy is turned off (--allow-policy-header)")
        self._sequence += 1
        self._tools.arrivals.count(client.target.model)
        self._tools.budget.earn()
        deadline_s = read.deadline_s or record.serving.policy.deadline_s
        now_s = self._watch.registry_now_s()
        draws = self._random if read.seed is None else random.Random(read.seed)
        arrival = IncomingRequest(
            id=read.request_id,
            model=client.target.model,
            arrival_s=now_s,
            draw=draws.random(),
            sequence=self._sequence,
            policy=read.policy,
            deadline_s=None if deadline_s is None else now_s + deadline_s,
        )
        read.deadline_s = deadline_s
        return Exchange(self._tools, client, read, arrival, body)

    async def _run_while_wanted(
        self, exchange: Exchange, client: ClientRequest, read: RequestHeaders
    ) -> None:
        """Run the exchange until its client is gone or its time is up.

        One cancellation with two causes: `asyncio.timeout` and a task that listens for the client
        would cost more than the rest of the bookkeeping.
        """
        now_s = client.loop.time()
        until_s = now_s + (read.deadline_s or self._settings.request_timeout)
        ending = RequestCancellation(
            client.loop, exchange, until_s, now_s + self._settings.body_timeout
        )
        client.on_gone = ending.client_gone
        try:
            if client.disconnected:  # it left while this request was not yet run
                raise ClientDisconnected
            await exchange.run(until_s)
        except asyncio.CancelledError:
            cause = ending.own_cause(is_draining=self.is_draining)
            if cause is None:
                raise
            if cause is ShuttingDown:
                raise ShuttingDown(
                    "the gateway shut down before the pod answered", retry_after_s=1.0
                ) from None
            if cause is BodyTooSlow:
                raise exchange.body_too_slow() from None
            limit = "deadline" if read.deadline_s else "gateway's request timeout"
            raise cause(f"the {limit} passed before the pod answered") from None
        finally:
            ending.stop()
            client.on_gone = None


def _host(scope: Scope) -> str:
    for name, value in scope["headers"]:
        if name == b"host":
            text: str = value.decode("latin-1")
            return text
    return ""
