"""The schedulers of workflows in the cluster, by the optional components."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from tests.kubernetes.kubectl import Kubectl, kustomize
from tests.kubernetes.places import IN_NAMESPACE, REPOSITORY


@contextmanager
def deployed_schedulers(
    installed: Kubectl, folder: Path, *components: str, objects: Sequence[Mapping[str, Any]] = ()
) -> Iterator[None]:
    """The component `workflows` and others; the gateway restarts with the schedulers' address.

    `objects` are further resources of the overlay, which is written to `folder`.
    """
    here = os.path.relpath(REPOSITORY / "manifests", folder.resolve())
    (folder / "objects.yaml").write_text(yaml.safe_dump_all(objects))
    content = {
        "resources": [f"{here}/overlays/minimal", *(["objects.yaml"] if objects else [])],
        "components": [f"{here}/components/{each}" for each in ("workflows", *components)],
    }
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(content))
    wanted = [each for each in kustomize(folder) if _is_scheduler(each) or _is_gateway(each)]
    before = kustomize(REPOSITORY / "manifests" / "overlays" / "minimal")
    installed.apply(wanted, "--force-conflicts")
    for each in wanted:
        if each["kind"] in {"Deployment", "StatefulSet"}:
            name = f"{each['kind']}/{each['metadata']['name']}"
            installed(*IN_NAMESPACE, "rollout", "status", name, "--timeout=180s")
    try:
        yield
    finally:
        installed.apply([each for each in before if _is_gateway(each)], "--force-conflicts")
        for each in wanted:
            if _is_scheduler(each):
                installed(*IN_NAMESPACE, "delete", each["kind"], each["metadata"]["name"])


def _is_scheduler(item: Mapping[str, Any]) -> bool:
    return "workflows" in item["metadata"]["name"]


def _is_gateway(item: Mapping[str, Any]) -> bool:
    return (item["kind"], item["metadata"]["name"]) == ("Deployment", "pilotlight-gateway")
