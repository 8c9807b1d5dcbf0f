"""Keeps the cluster's token issuer and its public keys in a ConfigMap, which gateways mount.

Gateways have no token to read them with. Any replica of the controller may act: it reads the
ConfigMap before the keys, so the API server refuses a write of keys older than the stored ones.
"""

import json
from contextlib import suppress
from typing import Final

from kubernetes.aio import client

from controller.api import Changed, KubernetesError, StoredObject, read_json

CONFIG_MAP: Final = "pilotlight-cluster-issuer"
_CONFIGURATION: Final = "/.well-known/openid-configuration"


async def write_issuer(api: client.ApiClient, namespace: str) -> None:
    """Write the ConfigMap if the keys have changed. Raises KubernetesError.

    An empty one where they cannot be read: gateways start, and take API keys and other tokens.
    """
    store = StoredObject(client.CoreV1Api(api), "config_map", CONFIG_MAP, namespace)
    stored, data = await store.read(), {}
    try:
        data = await read_issuer(api)
    finally:
        if stored is None or (data and stored.data != data):
            found = client.V1ObjectMeta(name=CONFIG_MAP) if stored is None else stored.metadata
            with suppress(Changed):
                await store.write(client.V1ConfigMap(metadata=found, data=data))


async def read_issuer(api: client.ApiClient) -> dict[str, str]:
    """Every service account may read both: `system:service-account-issuer-discovery`.

    Raises KubernetesError.
    """
    document = await read_json(api, _CONFIGURATION)
    keys = await read_json(api, "/openid/v1/jwks", kind="application/jwk-set+json")
    if not (isinstance(document, dict) and isinstance(document.get("issuer"), str)):
        raise KubernetesError(f"{_CONFIGURATION} must be an object with `issuer`, was {document!r}")
    return {"issuer": document["issuer"], "jwks": json.dumps(keys, sort_keys=True)}
