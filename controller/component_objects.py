"""What a model's transformer and explainer consist of: Deployment, Service and autoscaler. Pure.

As KServe makes them in its mode Standard (KServe 0.20, `transformer_custom.go`, `deployment_`,
`service_` and `hpa_reconciler.go`), for KServe makes none in mode ModelMesh while a model's status
has no `components.predictor.url`. A change of the model's policy restarts none of their pods.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final
from urllib.parse import urlsplit

from controller.pool_size import AUTOSCALER_CLASS
from controller.resources import SERVICE, Kind, ServiceObject
from registry.domain.model import ModelSpec

Document = dict[str, Any]

_VERSIONS: Final = {
    "HorizontalPodAutoscaler": "autoscaling/v2", "Service": "v1", "Deployment": "apps/v1",
}  # fmt: skip
_EXTENSION: Final = frozenset({
    "annotations", "art", "autoScaling", "batcher", "canaryTraffic", "canaryTrafficPercent",
    "containerConcurrency", "deploymentStrategy", "labels", "logger", "maxReplicas", "minReplicas",
    "scaleMetric", "scaleMetricType", "scaleTarget", "storageUris", "timeout",
})  # fmt: skip
"""Fields of a component that are not those of a pod."""
_NOT_COPIED: Final = (
    "pilotlight.io/", "controller.pilotlight.io/", "serving.kserve.io/", "kubectl.kubernetes.io/",
    "autoscaling.knative.dev/",
)  # fmt: skip
_STORAGE: Final = "internal.serving.kserve.io/storage-initializer-sourceuri"
"""At which KServe's webhook for pods adds what downloads STORAGE_URI."""
_PORT: Final = 8080
_CPU_PERCENT: Final = 80


def predictor_service(service: ServiceObject, gateway: str) -> Document:
    """`NAME-predictor`, at which components call the model: another name of the gateway's host."""
    spec = {"type": "ExternalName", "externalName": urlsplit(gateway).hostname}
    return _object(service, "Service", f"{service.name.name}-predictor", spec)


def component_objects(service: ServiceObject, component: str, gateway: str) -> list[Document]:
    """The Deployment first. `gateway`: a URL of it."""
    given, name = service.components[component], f"{service.name.name}-{component}"
    assert service.spec is not None
    pod = {key: value for key, value in given.items() if key not in _EXTENSION}
    first, *others = pod["containers"]
    container = _container(service, first, given, gateway)
    app = {"app": f"isvc.{name}"}
    owner = {SERVICE: service.name.name} if service.kind is Kind.SERVICE else {}
    labels = {**dict(service.spec.labels), **(given.get("labels") or {}), **owner}
    metadata = {
        "labels": {**labels, "component": component, **app},
        "annotations": _annotations(service.spec, given, first),
    }
    strategy = {"strategy": given["deploymentStrategy"]} if "deploymentStrategy" in given else {}
    template = {"metadata": metadata, "spec": {**pod, "containers": [container, *others]}}
    deployment = {"selector": {"matchLabels": app}, "template": template, **strategy}
    specs = {
        "Deployment": deployment,
        "Service": {"selector": app, "ports": _ports(name, container)},
        "HorizontalPodAutoscaler": _autoscaler(name, given),
    }
    if dict(service.spec.annotations).get(AUTOSCALER_CLASS) in ("external", "none"):
        del specs["HorizontalPodAutoscaler"]
    return [_object(service, kind, name, spec, metadata) for kind, spec in specs.items()]


def removed_objects(service: ServiceObject, component: str) -> list[Document]:
    """What `component_objects` may have made of a component that the model no longer has."""
    return [_object(service, kind, f"{service.name.name}-{component}", {}) for kind in _VERSIONS]


def _object(
    service: ServiceObject,
    kind: str,
    name: str,
    spec: Mapping[str, Any],
    metadata: Mapping[str, Any] = MappingProxyType({}),
) -> Document:
    head = {"apiVersion": _VERSIONS[kind], "kind": kind}
    return {**head, "metadata": owned_metadata(service, name, metadata), "spec": dict(spec)}


def owned_metadata(service: ServiceObject, name: str, more: Mapping[str, Any]) -> Document:
    """Of an object that is deleted with a model or pool, in its namespace."""
    version, owner_kind = service.reference
    names = {"name": name, "namespace": service.name.namespace}
    owner = {"apiVersion": version, "kind": owner_kind, "name": service.name.name}
    owners = {"ownerReferences": [{**owner, "uid": service.uid, "controller": True}]}
    return {**more, **names, **owners}


def _container(
    service: ServiceObject, first: Document, given: Mapping[str, Any], gateway: str
) -> Document:
    """The user's container with the arguments and the environment that KServe gives it."""
    args = list(first.get("args") or ())
    port = urlsplit(gateway).port
    host = f"{service.name.name}-predictor.{service.name.namespace}" + (f":{port}" if port else "")
    wanted = {
        "--model_name": service.name.name,
        "--predictor_host": host,
        "--http_port": str(_PORT),
    }
    if workers := given.get("containerConcurrency"):
        wanted["--workers"] = str(workers)
    for flag, value in wanted.items():
        if flag not in [str(each).partition("=")[0] for each in args]:
            args += [flag, value]
    env = list(first.get("env") or ())
    if not any(each.get("name") == "INFERENCE_SERVICE_NAME" for each in env):
        env.append({"name": "INFERENCE_SERVICE_NAME", "value": service.name.name})
    ports = first.get("ports") or [{"containerPort": _PORT}]
    probe = {"tcpSocket": {"port": ports[0]["containerPort"]}, "periodSeconds": 10}
    own = {"name": "kserve-container", "readinessProbe": probe}
    return {**own, **first, "args": args, "env": env}


def _annotations(spec: ModelSpec, given: Mapping[str, Any], first: Document) -> dict[str, str]:
    """The user's, without those of policies, whose change would restart the pods."""
    kept = {key: text for key, text in spec.annotations if not key.startswith(_NOT_COPIED)}
    for each in first.get("env") or ():
        if each.get("name") == "STORAGE_URI":
            kept[_STORAGE] = str(each.get("value", ""))
    return {**kept, **(given.get("annotations") or {})}


def _ports(name: str, container: Document) -> list[Document]:
    """The first port of the container is 80, others are their own; names as KServe gives them."""
    ports: Sequence[Document] = container.get("ports") or [{"name": name, "containerPort": _PORT}]
    return [
        {
            **({"name": each["name"]} if each.get("name") else {}),
            "port": each["containerPort"] if number else 80,
            "targetPort": each["containerPort"],
            "protocol": each.get("protocol", "TCP"),
        }
        for number, each in enumerate(ports)
    ]


def _autoscaler(name: str, given: Mapping[str, Any]) -> Document:
    low = max(1, int(given.get("minReplicas", 1)))
    metric, target = given.get("scaleMetric") or "cpu", given.get("scaleTarget")
    percent = target or (_CPU_PERCENT if metric == "cpu" else None)
    resource = {"name": metric, "target": {"type": "Utilization", "averageUtilization": percent}}
    is_known = metric in ("cpu", "memory") and percent is not None
    return {
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": name},
        "minReplicas": low,
        "maxReplicas": max(low, int(given.get("maxReplicas", 0))),
        **({"metrics": [{"type": "Resource", "resource": resource}]} if is_known else {}),
    }
