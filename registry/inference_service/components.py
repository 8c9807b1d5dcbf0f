"""`spec.transformer` and `spec.explainer`: KServe's components beside a predictor. Pure.

They are containers of the user's. In mode ModelMesh KServe makes their pods on a cluster, those of
an explainer only beside a transformer (KServe 0.20, `controller.go` and `components/`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from registry.shown_value import shown

if TYPE_CHECKING:
    from collections.abc import Mapping

    from registry.domain.model import ModelName, ModelPolicy

TRANSFORMER: Final = "transformer"
EXPLAINER: Final = "explainer"
COMPONENTS: Final = (TRANSFORMER, EXPLAINER)
MAX_NAME: Final = 63 - len(f"-{TRANSFORMER}")
"""Characters of a model's name: `NAME-transformer` is the name of a Service."""


def component_address(name: ModelName, component: str) -> str:
    """Host and port of a component's Service in its cluster; with `predictor`, of the model's.

    With `svc`, so that a missing Service is not looked up outside the cluster.
    """
    return f"{name.name}-{component}.{name.namespace}.svc:80"


def component_problems(spec: Mapping[str, Any], name: ModelName, policy: ModelPolicy) -> list[str]:
    """Mistakes in the components of an InferenceService, a line for each."""
    problems: list[str] = []
    for component in COMPONENTS:
        found = spec.get(component)
        if found is None:
            continue
        path = f"spec.{component}"
        if not isinstance(found, dict) or not found:
            problems.append(f"{path} must be an object, was {shown(found)}")
            continue
        containers = found.get("containers")
        if component == TRANSFORMER and not _is_list_of_objects(containers):
            problems.append(
                f"{path}.containers must be a list with a container, was {shown(containers)}"
            )
        if policy.application is not None:
            problems.append(
                f"{path} is not supported with pilotlight.io/application: requests to an"
                " application go to its variants directly"
            )
        if policy.canary_of is not None:
            problems.append(
                f"{path} is not supported with pilotlight.io/canary-of: requests come through the"
                f" {component} of {policy.canary_of}"
            )
        if len(name.name) > MAX_NAME:
            problems.append(
                f"{path} needs a metadata.name of at most {MAX_NAME} characters, for Services such"
                f" as NAME-{TRANSFORMER}; it has {len(name.name)}"
            )
    return problems


def machine_needs(spec: Mapping[str, Any]) -> str:
    """What one machine lacks for the components; empty: nothing."""
    parts = [f"spec.{component}" for component in COMPONENTS if spec.get(component)]
    if not parts:
        return ""
    verb = "are" if len(parts) > 1 else "is"
    return (
        f"{' and '.join(parts)} {verb} run as containers beside the model, which needs a cluster:"
        " on one machine call the model from a service of your own"
    )


def cluster_needs(spec: Mapping[str, Any]) -> str:
    """What a cluster with KServe lacks for the components; empty: nothing."""
    if spec.get(EXPLAINER) and not spec.get(TRANSFORMER):
        return (
            "spec.explainer has no spec.transformer beside it, without which KServe makes no pods"
            " of an explainer in mode ModelMesh: add a transformer that passes requests on, such as"
            " kserve.Model"
        )
    return ""


def _is_list_of_objects(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(each, dict) for each in value)
