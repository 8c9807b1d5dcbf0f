"""The calls the controller makes to the API server, each one a patch of what is ours to write.

Over the official client. What the API server answers becomes one of `errors`.
"""

from __future__ import annotations

import datetime
import json
import logging
from contextlib import contextmanager
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import aiohttp
from kubernetes.aio import client, config
from kubernetes.aio.client.exceptions import ApiException

from autoscaler.kubernetes.errors import Changed, ClusterUnreachable, Denied, Gone
from autoscaler.kubernetes.models.inference_services import POOL, ServiceObject, read_service
from autoscaler.kubernetes.pools.pods import PodObject, read_pod

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from registry.domain.model import ModelName

logger = logging.getLogger(__name__)

GROUP, VERSION, PLURAL = "serving.kserve.io", "v1beta1", "inferenceservices"
TIMEOUT_S = 15.0
LIST_TIMEOUT_S = 60.0
_JSON_PATCH = "application/json-patch+json"
_MERGE_PATCH = "application/merge-patch+json"
_MOST_MESSAGE = 1024
"""The API server refuses events with longer messages."""


async def connect() -> client.ApiClient:
    """A client as the pod's service account, or as the kubeconfig says. Raises ConfigException."""
    configuration = client.Configuration()
    try:
        config.load_incluster_config(client_configuration=configuration)
    except config.ConfigException:
        await config.load_kube_config(client_configuration=configuration)
    return client.ApiClient(configuration)


class ClusterApi:
    """What the controller and the autoscaler read and change of InferenceServices."""

    def __init__(self, api: client.ApiClient, *, component: str, instance: str) -> None:
        self._objects = client.CustomObjectsApi(api)
        self._core = client.CoreV1Api(api)
        self._plain = api.sanitize_for_serialization
        self._component = component
        self._instance = instance

    async def list_services(self) -> list[ServiceObject]:
        """All InferenceServices of the cluster. Raises Gone where KServe is not installed."""
        with answers("list", "InferenceServices"):
            found = await self._objects.list_cluster_custom_object(
                GROUP, VERSION, PLURAL, _request_timeout=LIST_TIMEOUT_S
            )
        return [read_service(each) for each in found["items"]]

    async def list_pods(self) -> list[PodObject]:
        """All pods of pools."""
        with answers("list", "pods"):
            found = await self._core.list_pod_for_all_namespaces(
                label_selector=POOL, _request_timeout=LIST_TIMEOUT_S
            )
        return [read_pod(self._plain(each)) for each in found.items]

    async def write_status(self, service: ServiceObject, status: Mapping[str, Any]) -> None:
        """Replace a model's status: it is ours alone. Raises Gone, Changed, ClusterUnreachable."""
        patch = [
            {"op": "test", "path": "/metadata/uid", "value": service.uid},
            {"op": "add", "path": "/status", "value": status},
        ]
        with answers("write the status", service):
            await self._objects.patch_namespaced_custom_object_status(
                GROUP, VERSION, service.name.namespace, PLURAL, service.name.name, patch,
                _content_type=_JSON_PATCH, _request_timeout=TIMEOUT_S,
            )  # fmt: skip

    async def set_finalizers(self, service: ServiceObject, finalizers: Sequence[str]) -> None:
        """Set the finalizers of the object as it was read. Raises Changed, Gone."""
        metadata = {"finalizers": list(finalizers), "resourceVersion": service.resource_version}
        with answers("set the finalizers", service):
            await self._objects.patch_namespaced_custom_object(
                GROUP, VERSION, service.name.namespace, PLURAL, service.name.name,
                {"metadata": metadata},
                _content_type=_MERGE_PATCH, _request_timeout=TIMEOUT_S,
            )  # fmt: skip

    async def tell(
        self, about: ModelName, uid: str, *, reason: str, message: str, is_warning: bool
    ) -> None:
        """Post an event about an InferenceService."""
        now = datetime.datetime.now(datetime.UTC)
        event = client.CoreV1Event(
            metadata=client.V1ObjectMeta(generate_name=f"{about.name}.", namespace=about.namespace),
            involved_object=client.V1ObjectReference(
                api_version=f"{GROUP}/{VERSION}",
                kind="InferenceService",
                name=about.name,
                namespace=about.namespace,
                uid=uid,
            ),
            type="Warning" if is_warning else "Normal",
            reason=reason,
            message=message
            if len(message) <= _MOST_MESSAGE
            else message[: _MOST_MESSAGE - 1] + "…",
            source=client.V1EventSource(component=self._component),
            reporting_component=self._component,
            reporting_instance=self._instance,
            first_timestamp=now,
            last_timestamp=now,
            count=1,
        )
        with answers("post an event", about):
            await self._core.create_namespaced_event(
                about.namespace, event, _request_timeout=TIMEOUT_S
            )


@contextmanager
def answers(what: str, about: object) -> Iterator[None]:
    """Turn what the client raises into our errors."""
    try:
        yield
    except ApiException as error:
        raise _meaning(error, what, about) from error
    except (TimeoutError, aiohttp.ClientError, OSError) as error:
        raise ClusterUnreachable(f"the API server did not answer: {error}") from error


def _meaning(error: ApiException, what: str, about: object) -> Exception:
    subject = getattr(about, "name", about)
    text = f"could not {what} of {subject}: {_text_of(error)}"
    if error.status == HTTPStatus.NOT_FOUND:
        return Gone(text)
    if error.status in (HTTPStatus.CONFLICT, HTTPStatus.UNPROCESSABLE_ENTITY):
        return Changed(text)
    if error.status in (HTTPStatus.FORBIDDEN, HTTPStatus.BAD_REQUEST):
        return Denied(text)
    return ClusterUnreachable(text)


def _text_of(error: ApiException) -> str:
    try:
        return str(json.loads(error.body)["message"])
    except (ValueError, TypeError, KeyError):
        return str(error.reason)
