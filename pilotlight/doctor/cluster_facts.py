"""Reads from the API server what `cluster_findings` judges. Objects stay documents of the API."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from kubernetes.aio import client

from controller.api import Denied, Gone, read_json
from controller.resources import POOL

Document = dict[str, Any]

_PATHS: Final[Mapping[str, str]] = {
    "crds": "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
    "deployments": "/apis/apps/v1/deployments",
    "services": "/apis/serving.kserve.io/v1beta1/inferenceservices",
    "nodes": "/api/v1/nodes",
    "network_policies": "/apis/networking.k8s.io/v1/namespaces/{namespace}/networkpolicies",
    "secrets": "/api/v1/namespaces/{namespace}/secrets",
    "platform_services": "/api/v1/namespaces/{namespace}/services",
    "pods": "/api/v1/namespaces/{namespace}/pods",
    "namespaces": "/api/v1/namespaces",
    "autoscalers": "/apis/autoscaling/v2/horizontalpodautoscalers",
    "scaled_objects": "/apis/keda.sh/v1alpha1/scaledobjects",
    "webhooks": "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations",
    "mutating_webhooks": "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations",
    "admission_policies": "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies",
    "config_maps": "/api/v1/configmaps",
    "peer_authentications": "/apis/security.istio.io/v1/peerauthentications",
}
_SELECTORS: Final[Mapping[str, tuple[str, str]]] = {
    "config_maps": ("fieldSelector", "metadata.name=config-features"),
    "namespaces": ("fieldSelector", "metadata.name={namespace}"),
    "pods": ("labelSelector", POOL),
}
_METADATA_ONLY: Final = frozenset({"crds", "secrets", "namespaces", "admission_policies"})
"""Their contents are large, or nobody's business."""
_PAGE: Final = 500


@dataclass(slots=True)
class ClusterFacts:
    """Lists of the cluster's objects; one that could not be read is missing."""

    namespace: str
    """Of the installation."""
    version: tuple[int, int] | None = None
    """Kubernetes' major and minor version."""
    lists: dict[str, list[Document]] = field(default_factory=dict)
    denied: dict[str, str] = field(default_factory=dict)
    """Why a list could not be read."""

    def items(self, name: str) -> list[Document]:
        return self.lists.get(name, [])


async def read_cluster(api: client.ApiClient, namespace: str) -> ClusterFacts:
    """Raises ClusterUnreachable."""
    facts = ClusterFacts(namespace)
    found = await read_json(api, "/version/")
    facts.version = (int(found["major"]), int("".join(filter(str.isdigit, found["minor"]))))
    for name, path in _PATHS.items():
        try:
            facts.lists[name] = await _list(api, name, path, namespace)
        except Gone:  # the resource is not installed
            facts.lists[name] = []
        except Denied as error:
            facts.denied[name] = str(error)
    return facts


async def _list(api: client.ApiClient, name: str, path: str, namespace: str) -> list[Document]:
    accept = "application/json"
    if name in _METADATA_ONLY:
        accept = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
    found: list[Document] = []
    rest = ""
    while True:
        query: dict[str, str] = {"limit": str(_PAGE)}
        if name in _SELECTORS:
            kind, selector = _SELECTORS[name]
            query[kind] = selector.format(namespace=namespace)
        if rest:
            query["continue"] = rest
        url = path.format(namespace=namespace)
        page = await read_json(api, url, kind=accept, **query)
        found += page["items"] or ()  # null in an empty list of metadata only
        rest = page["metadata"].get("continue") or ""
        if not rest:
            return found
