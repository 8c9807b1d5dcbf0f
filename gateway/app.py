"""The gateway's ASGI application: authorises requests other than inference, then calls FastAPI."""

import re
from dataclasses import replace
from functools import partial
from typing import Final
from urllib.parse import unquote

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from common.tls import PartTls
from gateway.authentication.access import Access
from gateway.dispatch.warm_request import take
from gateway.errors import GatewayError, MethodNotAllowed
from gateway.http.client_request import closing_connection
from gateway.http.error_responses import send_error
from gateway.http.headers import Headers
from gateway.http.openai import is_openai
from gateway.http.routes import (
    ModelPath,
    graph_path,
    is_inference,
    parse_path,
    refuse_other_name,
    target_of,
)
from gateway.inference import Inference
from gateway.pool import GatewayPools
from gateway.request_task import Shutdown

CONSOLE: Final = "/console"
EXPLANATIONS: Final = "/pilotlight/v1/explain/"
_RUN: Final = re.compile(r"/v1/workflows/[^/]+(?::|%3[Aa])run")


class GatewayApp:
    """ASGI application for everything but inference; `infer` serves inference requests."""

    def __init__(
        self,
        api: ASGIApp,
        pools: GatewayPools,
        inference: Inference,
        access: Access | None,
        tls: PartTls,
        shutdown: Shutdown,
    ) -> None:
        """`access`: None if requests need neither a key nor a token."""
        self._api = api
        self.pools = pools
        self.infer = inference.infer
        path = inference.warm_path
        self.take_warm = None if path is None else partial(take, path)
        self.access = access
        self.tls = tls
        self.shutdown = shutdown
        self.resolve_target = pools.resolve_target

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
