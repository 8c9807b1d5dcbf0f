"""KServe's `canaryTrafficPercent`: a changed model takes a share of its last version's requests.

As in KServe's mode Knative, a first version serves alone, and at 100 or without the field the new
version serves alone again. Until then it is a canary, `NAME-canary`, of the version before. Pure.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import yaml

from registry.domain.model import ModelName, ModelRecord, ModelSpec
from registry.errors import InvalidModel

_SUFFIX = "-canary"


@dataclass(frozen=True, slots=True)
class Rollout:
    put: ModelSpec
    """What is to be declared: the model, or its canary."""
    ended: ModelName | None = None
    """A canary that is to be deleted then."""


def trial_of(name: ModelName, models: Mapping[ModelName, ModelRecord]) -> ModelName | None:
    """The canary that a rollout of the model made, if there is one."""
    trial = ModelName(name.namespace, name.name + _SUFFIX)
    record = models.get(trial)
    return trial if record is not None and rolled_out_of(record.spec) == name else None


def rolled_out_of(spec: ModelSpec) -> ModelName | None:
    """The model that declares this one, if it is the canary of a rollout."""
    if spec.rollout_percent is None or spec.policy.canary_of is None:
        return None
    return ModelName(spec.name.namespace, spec.policy.canary_of)


def rollout_of(spec: ModelSpec, models: Mapping[ModelName, ModelRecord]) -> Rollout:
    """What a declaration changes beside the models of now. Raises InvalidModel."""
    before, trial = models.get(spec.name), trial_of(spec.name, models)
    is_first = before is None or before.spec.generation == spec.generation
    failure = None if before is None else before.failure
    is_served = failure is None or not failure.is_permanent  # else KServe keeps no traffic there
    if is_first or spec.rollout_percent is None or not is_served:
        return Rollout(spec, trial)
    name = ModelName(spec.name.namespace, spec.name.name + _SUFFIX)
    if (trial is None and name in models) or len(name.name) > 63:
        raise InvalidModel(
            [
                f"InferenceService {spec.name}: spec.predictor.canaryTrafficPercent needs the name"
                f" {name.name} for the new version: at most 63 characters, and of no other model"
            ]
        )
    policy = replace(
        spec.policy,
        canary_of=spec.name.name,
        canary_percent=spec.rollout_percent,
        min_copies=0,
        pin=False,
    )
    return Rollout(
        replace(spec, name=name, policy=policy, served_name="", transformer="", explainer="")
    )


def canary_objects(document: Mapping[str, Any]) -> str:
    """What `spec.canary` asks for, as an object of its own for each canary, in YAML."""
    spec, metadata = document["spec"], document.get("metadata") or {}
    listed = spec["canary"] if isinstance(spec["canary"], list) else []
    objects = []
    for each in (each for each in listed if isinstance(each, dict)):
        predictor = _patched(spec.get("predictor"), each.get("predictor"))
        own = {
            "pilotlight.io/canary-of": metadata.get("name"),
            "pilotlight.io/canary-percent": str(each.get("trafficPercent")),
        }
        name = f"{metadata.get('name')}-{predictor.pop('name', 'canary')}"
        annotations = {**(metadata.get("annotations") or {}), **own}
        changed = {**metadata, "name": name, "annotations": annotations}
        objects.append({**document, "metadata": changed, "spec": {"predictor": predictor}})
    return yaml.safe_dump_all(objects, default_flow_style=True, sort_keys=False, width=10**6)


def _patched(before: Any, patch: Any) -> Any:
    if not isinstance(before, dict) or not isinstance(patch, dict):
        return patch
    return {**before, **{key: _patched(before.get(key), patch[key]) for key in patch}}
