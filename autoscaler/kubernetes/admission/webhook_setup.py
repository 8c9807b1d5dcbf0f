"""Gets the webhooks their certificate and tells the API server whom to trust.

With cert-manager both come from outside: a mounted folder, and an injected `caBundle`.
"""

from __future__ import annotations

import base64
import datetime
import logging
import ssl
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from kubernetes.aio import client

from autoscaler.kubernetes.admission.certificates import (
    Certificates,
    beside,
    is_worn,
    make_certificates,
)
from autoscaler.kubernetes.cluster.cluster_api import TIMEOUT_S, answers
from autoscaler.kubernetes.errors import Changed, Gone

if TYPE_CHECKING:
    from autoscaler.kubernetes.settings import ControllerSettings

logger = logging.getLogger(__name__)

SECRET = "pilotlight-webhook"
VALIDATING = "annotations.pilotlight.io"
MUTATING = "defaults.pilotlight.io"
"""Mutating webhooks run in order of their name: before KServe's `inferenceservice.…`."""
CHECK_S = 20.0
"""How often certificate and `caBundle` are looked at: replicas renew, an `apply` takes away."""
_JSON_PATCH = "application/json-patch+json"


@dataclass(frozen=True, slots=True)
class _Stored:
    certificates: Certificates
    version: str
    """The Secret's resourceVersion."""


class WebhookSetup:
    """What one replica does before its webhooks can be called, and while they are."""

    def __init__(self, api: client.ApiClient, settings: ControllerSettings) -> None:
        self._core = client.CoreV1Api(api)
        self._admission = client.AdmissionregistrationV1Api(api)
        self._namespace = settings.namespace
        service = f"{settings.webhook_service}.{settings.namespace}"
        self._names = [f"{service}.svc", f"{service}.svc.cluster.local", service]

    async def prepare(self) -> Certificates:
        """Certificates that the API server trusts, made or renewed where they have to be.

        Raises KubernetesError; it may simply be called again.
        """
        stored = await self._read()
        found = stored.certificates if stored is not None else None
        if found is None or is_worn(found.certificate, self._names, _now()):
            found = await self._write(stored)
        await self._trust(found.authority)
        return found

    async def _read(self) -> _Stored | None:
        try:
            with answers("read the Secret", SECRET):
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

    async def _write(self, worn: _Stored | None) -> Certificates:
        """Store new certificates; another replica may have been quicker, then its are taken."""
        made = make_certificates(self._names, _now())
        metadata = client.V1ObjectMeta(name=SECRET)
        if worn is not None:
            made = replace(made, authority=beside(made.authority, worn.certificates.authority))
            metadata.resource_version = worn.version
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
            with answers("write the Secret", SECRET):
                if worn is None:
                    await self._core.create_namespaced_secret(
                        self._namespace, body, _request_timeout=TIMEOUT_S
                    )
                else:
                    await self._core.replace_namespaced_secret(
                        SECRET, self._namespace, body, _request_timeout=TIMEOUT_S
                    )
        except Changed:
            others = await self._read()
            return others.certificates if others is not None else made
        logger.info("made certificates for the webhooks")
        return made

    async def _trust(self, authority: bytes) -> None:
        patch = [
            {
                "op": "add",
                "path": "/webhooks/0/clientConfig/caBundle",
                "value": base64.b64encode(authority).decode(),
            }
        ]
        with answers("set the caBundle", VALIDATING):
            await self._admission.patch_validating_webhook_configuration(
                VALIDATING, patch, _content_type=_JSON_PATCH, _request_timeout=TIMEOUT_S
            )
        with answers("set the caBundle", MUTATING):
            await self._admission.patch_mutating_webhook_configuration(
                MUTATING, patch, _content_type=_JSON_PATCH, _request_timeout=TIMEOUT_S
            )


def context_of(certificates: Certificates) -> ssl.SSLContext:
    """A server's TLS context."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    take_up(context, certificates)
    return context


def take_up(context: ssl.SSLContext, certificates: Certificates) -> None:
    """Show these to whoever connects from now on. Raises ssl.SSLError where they do not fit.

    The ssl module reads certificates from files only.
    """
    with tempfile.TemporaryDirectory() as folder:
        certificate, key = Path(folder) / "tls.crt", Path(folder) / "tls.key"
        certificate.write_bytes(certificates.certificate)
        key.touch(mode=0o600)
        key.write_bytes(certificates.key)
        context.load_cert_chain(certificate, key)


def read_folder(folder: str) -> Certificates:
    """The certificates of a mounted Secret; somebody else injects its authority. Raises OSError."""
    files = Path(folder)
    return Certificates(b"", (files / "tls.crt").read_bytes(), (files / "tls.key").read_bytes())


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)
