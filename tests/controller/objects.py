"""InferenceServices as the API server returns them."""

from typing import Any


def pool_tenant(pool: str = "default", namespace: str = "*", **data: str) -> dict[str, Any]:
    """A tenant's ConfigMap; its name and uid follow from the namespace."""
    name = {"*": "everyone"}.get(namespace, namespace)
    labels = {"pilotlight.io/tenant-of": pool}
    given = {key.replace("_", "-"): text for key, text in data.items()}
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": "pilotlight", "uid": name, "labels": labels},
        "data": {"namespace": namespace, **given},
    }


def service(
    *,
    annotations: dict[str, str] | None = None,
    labels: dict[str, str] | None = None,
    status: dict[str, Any] | None = None,
    **metadata: Any,
) -> dict[str, Any]:
    """By default a model of the pool `default`."""
    model = {"modelFormat": {"name": "huggingface"}, "storageUri": "s3://models/t5-small"}
    document: dict[str, Any] = {
        "apiVersion": "serving.kserve.io/v1beta1",
        "kind": "InferenceService",
        "metadata": {
            "name": "translate",
            "namespace": "team",
            "uid": "uid-1",
            "resourceVersion": "7",
            "generation": 3,
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "annotations": {
                "pilotlight.io/pool": "default",
                "serving.kserve.io/deploymentMode": "ModelMesh",
            }
            if annotations is None
            else annotations,
            "labels": labels or {},
            **metadata,
        },
        "spec": {"predictor": {"model": model}},
    }
    if status is not None:
        document["status"] = status
    return document


def model(**fields: Any) -> dict[str, Any]:
    """The Model that says what `service` says; `fields` of its spec."""
    document = service(annotations={})
    spec = {**document["spec"], **fields}
    return {**document, "apiVersion": "pilotlight.io/v1alpha1", "kind": "Model", "spec": spec}
