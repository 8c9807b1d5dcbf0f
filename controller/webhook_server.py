"""HTTPS servers of the admission webhooks and the external metrics API, and their `caBundle`.

Every replica serves, leader or not. With cert-manager the certificate is in a mounted folder, and
cert-manager injects the `caBundle`.
"""

from __future__ import annotations

import asyncio
import base64
import datetime
import logging
import ssl
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import orjson
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from kubernetes.aio import client
from kubernetes.aio.client import ApiClient
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from common.certificates import Certificates, load_certificates, make_certificates, make_context
from common.http_server import HttpServer
from controller.admission import review_response, set_defaults, validate
from controller.api import (
    FAILURES,
    JSON_PATCH,
    Changed,
    Denied,
    KubernetesError,
    StoredObject,
    read_json,
    request,
)
from controller.external_metrics import API_SERVICE, ExternalMetrics, aggregation_server
from controller.objects import ClusterObjects
from controller.pools import PoolRegistries
from controller.settings import ControllerSettings
from registry.domain.tenant_rules import TenantRules

logger = logging.getLogger(__name__)

SECRET = "pilotlight-webhook"
SERVICE = "pilotlight-webhook"
"""The webhooks' Service, as the manifests name it."""
VALIDATING = "annotations.pilotlight.io"
MUTATING = "defaults.pilotlight.io"
"""Mutating webhooks run in order of their names: this one before KServe's `inferenceservice.…`."""
_Made = TypeVar("_Made")
RENEW_BEFORE = datetime.timedelta(days=60)


class WebhookSetup:
    """Keeps the Secret and the webhook configurations of one installation up to date."""

    def __init__(self, api: client.ApiClient, settings: ControllerSettings) -> None:
        self._store = StoredObject(client.CoreV1Api(api), "secret", SECRET, settings.namespace)
        self._api = api
        self._has_metrics = bool(settings.external_metrics_port)
        service = f"{SERVICE}.{settings.namespace}"
        self._names = [f"{service}.svc", f"{service}.svc.cluster.local", service]

    async def prepare(self) -> Certificates:
        """Valid certificates that the API server trusts. Idempotent. Raises KubernetesError."""
        found, version = await self._read()
        if needs_renewal(found.certificate, self._names, _now()):
            found = await self._renew(found, version)
        await self._set_ca_bundle(found.authority)
        return found

    async def _read(self) -> tuple[Certificates, str | None]:
        """Of the Secret, empty where it has none, and its resourceVersion."""
        secret = await self._store.read()
        stored = (secret.data if secret is not None else None) or {}
        texts = (stored.get(each, "") for each in ("ca.crt", "tls.crt", "tls.key"))
        version = secret.metadata.resource_version if secret is not None else None
        return Certificates(*map(base64.b64decode, texts)), version

    async def _renew(self, old: Certificates, version: str | None) -> Certificates:
        """Store new certificates; if another replica was faster, return those it stored."""
        made = make_certificates(self._names, _now())
        made = replace(made, authority=authority_bundle(made.authority, old.authority))
        body = client.V1Secret(
            metadata=client.V1ObjectMeta(name=SECRET, resource_version=version),
            type="kubernetes.io/tls",
            data={
                "ca.crt": base64.b64encode(made.authority).decode(),
                "tls.crt": base64.b64encode(made.certificate).decode(),
                "tls.key": base64.b64encode(made.key).decode(),
            },
        )
        try:
            await self._store.write(body)
        except Changed:
            return (await self._read())[0]
        logger.info("webhook certificates created")
        return made

    async def _set_ca_bundle(self, authority: bytes) -> None:
        value = base64.b64encode(authority).decode()
        for kind, name in (("validating", VALIDATING), ("mutating", MUTATING)):
            path = f"/apis/admissionregistration.k8s.io/v1/{kind}webhookconfigurations/{name}"
            await self._patch_bundle(path, "/webhooks/0/clientConfig", value)
        if self._has_metrics:
            path = f"/apis/apiregistration.k8s.io/v1/apiservices/{API_SERVICE}"
            try:
                await self._patch_bundle(path, "/spec", value)
            except KubernetesError as error:  # the webhooks serve without it
                FAILURES.labels(cause=type(error).__name__).inc()
                logger.warning("no external metrics yet; retrying", exc_info=error)

    async def _patch_bundle(self, path: str, field: str, value: str) -> None:
        """Raises Denied if the object leads to a Service of others, KubernetesError."""
        found, name = await read_json(self._api, path), path.rpartition("/")[2]
        holder = found["spec"] if field == "/spec" else found["webhooks"][0]["clientConfig"]
        if (holder.get("service") or {}).get("name") != SERVICE:
            raise Denied(f"{name} must lead to Service {SERVICE}; it is that of others")
        if holder.get("caBundle") != value:
            patch = [{"op": "add", "path": f"{field}/caBundle", "value": value}]
            subject = f"the caBundle of {name}"
            await request(self._api, "PATCH", path, subject, patch, content_type=JSON_PATCH)


def read_folder(folder: str) -> Certificates:
    """The certificates of a mounted Secret, without the authority. Raises OSError."""
    files = Path(folder)
    return Certificates(b"", (files / "tls.crt").read_bytes(), (files / "tls.key").read_bytes())


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


def authority_bundle(authority: bytes, previous: bytes) -> bytes:
    """A new authority and its predecessor: replicas serve the old certificate a little longer."""
    try:
        [old, *_] = x509.load_pem_x509_certificates(previous)
    except ValueError:
        return authority
    return authority + old.public_bytes(Encoding.PEM)


def needs_renewal(certificate: bytes, names: list[str], now: datetime.datetime) -> bool:
    """True if the certificate expires soon, lacks one of the names, or cannot be read."""
    try:
        found = x509.load_pem_x509_certificate(certificate)
        listed = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (ValueError, x509.ExtensionNotFound):
        return True
    if not set(names) <= set(listed.get_values_for_type(x509.DNSName)):
        return True
    return found.not_valid_after_utc - now < RENEW_BEFORE


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
        self,
        client: ApiClient,
        settings: ControllerSettings,
        objects: ClusterObjects,
        registries: PoolRegistries,
    ) -> None:
        self._client = client
        self._registries = registries
        self._settings = settings
        self._objects = objects
        self._read_certificates = _certificate_source(client, settings)
        self._server: HttpServer | None = None

    @property
    def is_started(self) -> bool:
        return self._server is not None and self._server.started

    def _rules(self, pool: str) -> TenantRules | None:
        return self._objects.rules(pool) if self._objects.has_pool(pool) else None

    async def run(self) -> None:
        certificates = await _retried(self._read_certificates, "certificate for the webhooks")
        context = make_context(certificates)
        check = partial(
            validate,
            rules_of=self._rules,
            namesake=self._objects.model_of_other_kind,
            asks_clients=self._settings.auth != "open",
        )
        application = admission_app(check)
        self._server = HttpServer(application, port=self._settings.webhook_port, tls=context)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._server.serve())
            contexts = [context]
            tasks.create_task(self._reload(contexts, certificates))
            if self._settings.external_metrics_port:
                await self._serve_metrics(contexts, certificates)

    async def _serve_metrics(
        self, contexts: list[ssl.SSLContext], certificates: Certificates
    ) -> None:
        metrics = ExternalMetrics(self._objects, self._registries)
        port = self._settings.external_metrics_port
        make = partial(aggregation_server, self._client, certificates, metrics, port)
        server, context = await _retried(make, "external metrics")
        contexts.append(context)
        await server.serve()

    async def _reload(self, contexts: list[ssl.SSLContext], current: Certificates) -> None:
        """Load renewed certificates into the contexts; after an error the current one stays."""
        while True:
            await asyncio.sleep(CHECK_INTERVAL_S)
            try:
                found = await self._read_certificates()
                if found != current:
                    for context in contexts:
                        load_certificates(context, found)
                    current = found
                    logger.info("webhook certificate reloaded")
            except (KubernetesError, OSError) as error:  # ssl.SSLError is an OSError
                FAILURES.labels(cause=type(error).__name__).inc()
                logger.warning("webhook certificate not reloaded", exc_info=error)


async def _retried(make: Callable[[], Awaitable[_Made]], what: str) -> _Made:
    while True:
        try:
            return await make()
        except (KubernetesError, OSError) as error:
            FAILURES.labels(cause=type(error).__name__).inc()
            logger.warning("no %s yet; retrying", what, exc_info=error)
            await asyncio.sleep(RETRY_INTERVAL_S)


def _certificate_source(
    client: ApiClient, settings: ControllerSettings
) -> Callable[[], Awaitable[Certificates]]:
    """The certificates to serve now: from the mounted folder, else made here."""
    if not settings.certificates:
        return WebhookSetup(client, settings).prepare
    return lambda: asyncio.to_thread(read_folder, settings.certificates)


def admission_app(check: Callable[[Mapping[str, Any]], dict[str, Any]]) -> Starlette:
    """`check`: `admission.validate` with what it knows of the cluster."""
    return Starlette(
        routes=[
            Route(VALIDATE_PATH, _endpoint(check), methods=["POST"]),
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
