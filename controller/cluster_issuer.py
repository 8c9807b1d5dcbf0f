"""Keeps the cluster's token issuer and its public keys in a ConfigMap, which gateways mount.

Gateways have no token to read them with. Any replica of the controller may act: it reads the
ConfigMap before the keys, so the API server refuses a write of keys older than the stored ones.
"""

import asyncio
import json
import logging
from typing import Any, Final

from kubernetes.aio import client

from controller.api import (
    FAILURES,
    TIMEOUT_S,
    Changed,
    Gone,
    KubernetesError,
    api_errors,
    read_json,
)
from controller.settings import ControllerSettings

logger = logging.getLogger(__name__)

CONFIG_MAP: Final = "pilotlight-cluster-issuer"
POLL_INTERVAL_S: Final = 60.0
RETRY_INTERVAL_S: Final = 5.0


class ClusterIssuerKeeper:
    def __init__(self, api: client.ApiClient, settings: ControllerSettings) -> None:
        self._api = api
        self._core = client.CoreV1Api(api)
        self._namespace = settings.namespace

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            pause_s = POLL_INTERVAL_S
            try:
                await self.keep()
            except KubernetesError as error:
                FAILURES.labels(cause=type(error).__name__).inc()
                logger.warning("the cluster's token keys were not read; retrying", exc_info=error)
                pause_s = RETRY_INTERVAL_S
            await asyncio.sleep(pause_s)

    async def keep(self) -> None:
        """Write the ConfigMap if the keys have changed. Raises KubernetesError."""
        stored = await self._stored()
        try:
            data = await self._issuer()
        except KubernetesError:
            if stored is None:  # gateways start all the same, and take API keys and other tokens
                await self._write({}, None)
            raise
        if stored is None:
            await self._write(data, None)
        elif stored.data != data:
            await self._write(data, stored.metadata.resource_version)

    async def _stored(self) -> client.V1ConfigMap | None:
        try:
            with api_errors("read the ConfigMap", CONFIG_MAP):
                return await self._core.read_namespaced_config_map(
                    CONFIG_MAP, self._namespace, _request_timeout=TIMEOUT_S
                )
        except Gone:
            return None

    async def _issuer(self) -> dict[str, str]:
        """Every service account may read both: `system:service-account-issuer-discovery`."""
        document = await read_json(self._api, "/.well-known/openid-configuration")
        keys = await read_json(self._api, "/openid/v1/jwks", kind="application/jwk-set+json")
        return {"issuer": document["issuer"], "jwks": json.dumps(keys, sort_keys=True)}

    async def _write(self, data: dict[str, str], version: str | None) -> None:
        metadata = client.V1ObjectMeta(name=CONFIG_MAP, resource_version=version)
        body: Any = client.V1ConfigMap(metadata=metadata, data=data)
        try:
            with api_errors("write the ConfigMap", CONFIG_MAP):
                if version is None:
                    await self._core.create_namespaced_config_map(
                        self._namespace, body, _request_timeout=TIMEOUT_S
                    )
                else:
                    await self._core.replace_namespaced_config_map(
                        CONFIG_MAP, self._namespace, body, _request_timeout=TIMEOUT_S
                    )
        except Changed:  # another replica was faster
            return
        logger.info("the cluster's token keys were written", extra={"issuer": data.get("issuer")})
