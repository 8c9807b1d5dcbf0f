"""HTTPS server of the admission webhooks, its certificate and their `caBundle`.

Every replica serves, leader or not. With cert-manager the certificate is in a mounted folder, and
cert-manager injects the `caBundle`.
"""

from __future__ import annotations

import asyncio
import base64
import datetime
import logging
import ssl
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import orjson
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from kubernetes.aio import client
from kubernetes.aio.client import ApiClient
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from common.http_server import HttpServer
from controller.admission import review_response, set_defaults, validate
from controller.api import FAILURES, TIMEOUT_S, Changed, Gone, KubernetesError, api_errors
from controller.objects import ClusterObjects
from controller.settings import ControllerSettings
from registry.domain.tenant_rules import TenantRules

logger = logging.getLogger(__name__)

SECRET = "pilotlight-webhook"
SERVICE = "pilotlight-webhook"
"""The webhooks' Service, as the manifests name it."""
VALIDATING = "annotations.pilotlight.io"
MUTATING = "defaults.pilotlight.io"
"""Mutating webhooks run in order of their names: this one before KServe's `inferenceservice.…`."""
_JSON_PATCH = "application/json-patch+json"
VALIDITY = datetime.timedelta(days=365)
RENEW_BEFORE = datetime.timedelta(days=60)
_CLOCK_SKEW = datetime.timedelta(minutes=5)


@dataclass(frozen=True, slots=True)
class _Stored:
    certificates: Certificates
    version: str
    """The Secret's resourceVersion."""


class WebhookSetup:
    """Keeps the Secret and the webhook configurations of one installation up to date."""

    def __init__(self, api: client.ApiClient, settings: ControllerSettings) -> None:
        self._core = client.CoreV1Api(api)
        self._admission = client.AdmissionregistrationV1Api(api)
        self._namespace = settings.namespace
        service = f"{SERVICE}.{settings.namespace}"
        self._names = [f"{service}.svc", f"{service}.svc.cluster.local", service]

    async def prepare(self) -> Certificates:
        """Valid certificates that the API server trusts. Idempotent. Raises KubernetesError."""
        stored = await self._read()
        found = stored.certificates if stored is not None else None
        if found is None or needs_renewal(found.certificate, self._names, _now()):
            found = await self._write(stored)
        await self._set_ca_bundle(found.authority)
        return found

    async def _read(self) -> _Stored | None:
        try:
            with api_errors("read the Secret", SECRET):
                secret = await self._core.read_namespaced_secret(
                    SECRET, self._namespace, _request_timeout=TIMEOUT_S
                )
        except Gone:
            return None
        data = {name: base64.b64decode(text) for name, text in (secret.data or {}).items()}
        certificates = Certificates(
            data.get("ca.crt", b""), data.get("tls.crt", b""), data.get("tls.key", b"")
        )
        return _Stored(certificates, secret.metadata.resource_version)

    async def _write(self, old: _Stored | None) -> Certificates:
        """Store new certificates; if another replica was faster, return those it stored."""
        made = make_certificates(self._names, _now())
        metadata = client.V1ObjectMeta(name=SECRET)
        if old is not None:
            bundle = authority_bundle(made.authority, old.certificates.authority)
            made = replace(made, authority=bundle)
            metadata.resource_version = old.version
        body = client.V1Secret(
            metadata=metadata,
            type="kubernetes.io/tls",
            data={
                "ca.crt": base64.b64encode(made.authority).decode(),
                "tls.crt": base64.b64encode(made.certificate).decode(),
                "tls.key": base64.b64encode(made.key).decode(),
            },
        )
        try:
            with api_errors("write the Secret", SECRET):
                if old is None:
                    await self._core.create_namespaced_secret(
                        self._namespace, body, _request_timeout=TIMEOUT_S
                    )
                else:
                    await self._core.replace_namespaced_secret(
                        SECRET, self._namespace, body, _request_timeout=TIMEOUT_S
                    )
        except Changed:
            stored = await self._read()
            return stored.certificates if stored is not None else made
        logger.info("webhook certificates created")
        return made

    async def _set_ca_bundle(self, authority: bytes) -> None:
        value = base64.b64encode(authority).decode()
        patch = [{"op": "add", "path": "/webhooks/0/clientConfig/caBundle", "value": value}]
        for kind, name in (("validating", VALIDATING), ("mutating", MUTATING)):
            read = getattr(self._admission, f"read_{kind}_webhook_configuration")
            write = getattr(self._admission, f"patch_{kind}_webhook_configuration")
            with api_errors("set the caBundle of", name):
                found = await read(name, _request_timeout=TIMEOUT_S)
                if found.webhooks[0].client_config.ca_bundle != value:
                    await write(name, patch, _content_type=_JSON_PATCH, _request_timeout=TIMEOUT_S)


def make_context(certificates: Certificates) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    load_certificates(context, certificates)
    return context


def load_certificates(context: ssl.SSLContext, certificates: Certificates) -> None:
    """Use these for new connections. Raises ssl.SSLError if key and certificate do not match.

    Through temporary files, since the ssl module cannot read certificates from memory.
    """
    with tempfile.TemporaryDirectory() as folder:
        certificate, key = Path(folder) / "tls.crt", Path(folder) / "tls.key"
        certificate.write_bytes(certificates.certificate)
        key.touch(mode=0o600)
        key.write_bytes(certificates.key)
        context.load_cert_chain(certificate, key)


def read_folder(folder: str) -> Certificates:
    """The certificates of a mounted Secret, without the authority. Raises OSError."""
    files = Path(folder)
    return Certificates(b"", (files / "tls.crt").read_bytes(), (files / "tls.key").read_bytes())


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


@dataclass(frozen=True, slots=True)
class Certificates:
    """In PEM format."""

    authority: bytes
    certificate: bytes
    key: bytes


def make_certificates(names: list[str], now: datetime.datetime) -> Certificates:
    """An authority, and a server certificate for these DNS names; both valid for a year."""
    authority_key = ec.generate_private_key(ec.SECP256R1())
    subject = _name("pilotlight-webhook-ca")
    authority = (
        _builder(subject, subject, authority_key.public_key(), now)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(
            x509.SubjectKeyIdentifier.from_public_key(authority_key.public_key()), critical=False
        )
        .sign(authority_key, hashes.SHA256())
    )
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = (
        _builder(_name(names[0]), subject, key.public_key(), now)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(n) for n in names]), False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), False
        )
        .sign(authority_key, hashes.SHA256())
    )
    return Certificates(
        authority=authority.public_bytes(serialization.Encoding.PEM),
        certificate=certificate.public_bytes(serialization.Encoding.PEM),
        key=key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ),
    )


def authority_bundle(authority: bytes, previous: bytes) -> bytes:
    """A new authority and its predecessor: replicas serve the old certificate a little longer."""
    try:
        [old, *_] = x509.load_pem_x509_certificates(previous)
    except ValueError:
        return authority
    return authority + old.public_bytes(serialization.Encoding.PEM)


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


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:64])])


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, now: datetime.datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCK_SKEW)
        .not_valid_after(now + VALIDITY)
    )


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
        return self._objects.rules(pool) if self._objects.has_pool(pool) else None

    async def run(self) -> None:
        certificates = await self._first_certificates()
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
