"""HTTPS server of the admission webhooks. Every replica serves them, leader or not."""

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

import orjson
from kubernetes.aio.client import ApiClient
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from common.http_server import HttpServer
from controller.admission.review import review_response, set_defaults, validate
from controller.admission.webhook_setup import (
    Certificates,
    WebhookSetup,
    load_certificates,
    make_context,
    read_folder,
)
from controller.cluster.cluster_objects import ClusterObjects
from controller.errors import KubernetesError
from controller.metrics import FAILURES
from controller.settings import ControllerSettings
from registry.inference_service.tenant_rules import TenantRules

logger = logging.getLogger(__name__)

VALIDATE_PATH = "/validate-inferenceservice"
MUTATE_PATH = "/mutate-inferenceservice"
CHECK_INTERVAL_S = 20.0
"""Interval of checks of certificate and `caBundle`: another replica may renew the certificate, and
`kubectl apply` removes the `caBundle`."""
RETRY_INTERVAL_S = 2.0
_MAX_BYTES = 8 << 20
"""The API server accepts objects of 3 MB at most; a review holds the old object too."""


class WebhookServer:
    """Waits for a certificate, then serves, and reloads the certificate after each renewal."""

    def __init__(
        self, client: ApiClient, settings: ControllerSettings, objects: ClusterObjects
    ) -> None:
        self._settings = settings
        self._objects = objects
        self._read_certificates = _certificate_source(client, settings)
        self._server: HttpServer | None = None

    @property
    def is_started(self) -> bool:
        return self._server is not None and self._server.started

    def _rules(self, pool: str) -> TenantRules | None:
        found = self._objects.pool(pool)
        return None if found is None else found.rules

    async def run(self) -> None:
        certificates = await self._first_certificates()
        context = make_context(certificates)
        self._server = HttpServer(
            admission_app(self._rules), port=self._settings.webhook_port, tls=context
        )
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._server.serve())
            tasks.create_task(self._reload(context, certificates))

    async def _first_certificates(self) -> Certificates:
        while True:
            try:
                return await self._read_certificates()
            except (KubernetesError, OSError) as error:
                FAILURES.labels(cause=type(error).__name__).inc()
                logger.warning("no certificate for the webhooks yet; retrying", exc_info=error)
                await asyncio.sleep(RETRY_INTERVAL_S)

    async def _reload(self, context: ssl.SSLContext, current: Certificates) -> None:
        """Load renewed certificates into the context; after an error the current one stays."""
        while True:
            await asyncio.sleep(CHECK_INTERVAL_S)
            try:
                found = await self._read_certificates()
                if found != current:
                    load_certificates(context, found)
                    current = found
                    logger.info("webhook certificate reloaded")
            except (KubernetesError, OSError) as error:  # ssl.SSLError is an OSError
                FAILURES.labels(cause=type(error).__name__).inc()
                logger.warning("webhook certificate not reloaded", exc_info=error)


def _certificate_source(
    client: ApiClient, settings: ControllerSettings
) -> Callable[[], Awaitable[Certificates]]:
    """The certificates to serve now: from the mounted folder, else made here."""
    if not settings.certificates:
        return WebhookSetup(client, settings).prepare
    return lambda: asyncio.to_thread(read_folder, settings.certificates)


def admission_app(rules_of: Callable[[str], TenantRules | None]) -> Starlette:
    """`rules_of`: the rules of a pool by name; None: unknown."""
    return Starlette(
        routes=[
            Route(VALIDATE_PATH, _endpoint(partial(validate, rules_of=rules_of)), methods=["POST"]),
            Route(MUTATE_PATH, _endpoint(set_defaults), methods=["POST"]),
        ]
    )


def _endpoint(handle: Callable[[Mapping[str, Any]], dict[str, Any]]) -> Any:
    async def review(request: Request) -> Response:
        body = b""
        async for piece in request.stream():
            body += piece
            if len(body) > _MAX_BYTES:
                return JSONResponse({"error": f"longer than {_MAX_BYTES} bytes"}, 413)
        try:
            return JSONResponse(review_response(orjson.loads(body), handle))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            logger.warning("invalid admission review", exc_info=error)
            return JSONResponse({"error": f"must be an AdmissionReview: {error!r}"}, 400)

    return review
