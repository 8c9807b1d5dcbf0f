"""Keeps the cluster's token issuer and its public keys in a ConfigMap, which gateways mount.

Gateways have no token to read them with. Any replica of the controller may act: it reads the
ConfigMap before the keys, so the API server refuses a write of keys older than the stored ones.
"""

import json
from contextlib import suppress
from typing import Final

from kubernetes.aio import client

from controller.api import TIMEOUT_S, Changed, Gone, api_errors, read_json

CONFIG_MAP: Final = "pilotlight-cluster-issuer"


async def write_issuer(api: client.ApiClient, namespace: str) -> None:
    """Write the ConfigMap if the keys have changed. Raises KubernetesError.

    An empty one where they cannot be read: gateways start, and take API keys and other tokens.
    """
    core, stored, data = client.CoreV1Api(api), None, {}
    with suppress(Gone), api_errors("read the ConfigMap", CONFIG_MAP):
        stored = await core.read_namespaced_config_map(
            CONFIG_MAP, namespace, _request_timeout=TIMEOUT_S
        )
    try:
        data = await read_issuer(api)
    finally:
        body = client.V1ConfigMap(metadata=client.V1ObjectMeta(name=CONFIG_MAP), data=data)
        with suppress(Changed), api_errors("write the ConfigMap", CONFIG_MAP):
            if stored is None:
                await core.create_namespaced_config_map(namespace, body, _request_timeout=TIMEOUT_S)
            elif data and stored.data != data:
                body.metadata = stored.metadata
                await core.replace_namespaced_config_map(
                    CONFIG_MAP, namespace, body, _request_timeout=TIMEOUT_S
                )


async def read_issuer(api: client.ApiClient) -> dict[str, str]:
    """Every service account may read both: `system:service-account-issuer-discovery`."""
    document = await read_json(api, "/.well-known/openid-configuration")
    keys = await read_json(api, "/openid/v1/jwks", kind="application/jwk-set+json")
    return {"issuer": document["issuer"], "jwks": json.dumps(keys, sort_keys=True)}
