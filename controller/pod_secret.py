"""Makes and rotates the Secret that gateway, autoscaler and pods mount.

A rotation adds a new secret, and takes the old one away when every kubelet has had time to update
the mounted files. A Secret without the annotation is somebody else's and stays as it is.
"""

import asyncio
import base64
import datetime
import logging
from typing import Final

from kubernetes.aio import client

from common.pod_secret import make_secret, parse_secrets
from controller.api import FAILURES, TIMEOUT_S, Changed, Gone, KubernetesError, api_errors
from controller.settings import ControllerSettings

logger = logging.getLogger(__name__)

SECRET: Final = "pilotlight-pods"
ENTRY: Final = "secrets"
CHANGED_AT: Final = "pilotlight.io/changed-at"
PERIOD_S: Final = 86_400.0
"""After which the secret is replaced: a copy of it that leaked is of use for a day."""
OVERLAP_S: Final = 3600.0
"""A kubelet updates a mounted Secret within two minutes; one without the API server, later."""
POLL_INTERVAL_S: Final = 60.0
RETRY_INTERVAL_S: Final = 2.0


class PodSecretKeeper:
    """Any replica of the controller may act: the API server refuses a write that came second."""

    def __init__(self, api: client.ApiClient, settings: ControllerSettings) -> None:
        self._core = client.CoreV1Api(api)
        self._namespace = settings.namespace

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            pause_s = POLL_INTERVAL_S
            try:
                await self.keep(datetime.datetime.now(datetime.UTC))
            except KubernetesError as error:
                FAILURES.labels(cause=type(error).__name__).inc()
                logger.warning("the pods' secret could not be kept; retrying", exc_info=error)
                pause_s = RETRY_INTERVAL_S
            await asyncio.sleep(pause_s)

    async def keep(self, now: datetime.datetime) -> None:
        """Make the Secret if it is missing, or take the next step of its rotation."""
        try:
            with api_errors("read the Secret", SECRET):
                stored = await self._core.read_namespaced_secret(
                    SECRET, self._namespace, _request_timeout=TIMEOUT_S
                )
        except Gone:
            await self._write((make_secret(),), now, version=None)
            return
        changed_at = (stored.metadata.annotations or {}).get(CHANGED_AT)
        if changed_at is None:
            return
        text = base64.b64decode((stored.data or {}).get(ENTRY, "")).decode("ascii", "replace")
        age_s = (now - datetime.datetime.fromisoformat(changed_at)).total_seconds()
        secrets = next_secrets(text, age_s, PERIOD_S)
        if secrets is not None:
            await self._write(secrets, now, version=stored.metadata.resource_version)

    async def _write(
        self, secrets: tuple[str, ...], now: datetime.datetime, *, version: str | None
    ) -> None:
        body = client.V1Secret(
            metadata=client.V1ObjectMeta(
                name=SECRET, annotations={CHANGED_AT: now.isoformat()}, resource_version=version
            ),
            data={ENTRY: base64.b64encode("\n".join(secrets).encode()).decode()},
        )
        try:
            with api_errors("write the Secret", SECRET):
                if version is None:
                    await self._core.create_namespaced_secret(
                        self._namespace, body, _request_timeout=TIMEOUT_S
                    )
                else:
                    await self._core.replace_namespaced_secret(
                        SECRET, self._namespace, body, _request_timeout=TIMEOUT_S
                    )
        except Changed:  # another replica was faster
            return
        logger.info("the pods' secret was changed", extra={"secrets": len(secrets)})


def next_secrets(text: str, age_s: float, period_s: float) -> tuple[str, ...] | None:
    """What follows a Secret's text that was written `age_s` ago; None: nothing yet.

    A new secret is added `period_s` after the last change, or at once if there is no valid one;
    `OVERLAP_S` later it is the only one.
    """
    try:
        secrets = parse_secrets(text)
    except ValueError:
        return (make_secret(),)
    if len(secrets) > 1:
        return secrets[-1:] if age_s >= OVERLAP_S else None
    return (*secrets, make_secret()) if age_s >= period_s else None
