"""KServe's canaryTrafficPercent and spec.canary."""

from dataclasses import replace
from typing import Any

import pytest
import yaml

from registry.domain.model import LoadFailure, ModelName, ModelRecord, ModelSpec
from registry.errors import InvalidModel
from registry.inference_service.reader import read_documents
from registry.inference_service.rollouts import Rollout, rolled_out_of, rollout_of, trial_of
from tests.registry.inference_service.test_fields import declared, read

IRIS, TRIAL = ModelName("default", "iris"), ModelName("default", "iris-canary")


def version(number: int, percent: int | None = None, **predictor: Any) -> ModelSpec:
    model = {"storageUri": f"s3://models/{number}"}
    return read(declared(model=model, canaryTrafficPercent=percent, **predictor))


def records(*specs: ModelSpec) -> dict[ModelName, ModelRecord]:
    return {spec.name: ModelRecord(spec) for spec in specs}


def test_a_first_version_serves_alone() -> None:
    assert rollout_of(version(1, 10), {}) == Rollout(version(1, 10))


def test_a_changed_version_is_a_canary_of_the_one_before() -> None:
    changed = version(2, 10, minReplicas=3)
    found = rollout_of(changed, records(version(1)))
    assert (found.put.name, found.ended) == (TRIAL, None)
    assert (found.put.policy.canary_of, found.put.policy.canary_percent) == ("iris", 10)
    assert (found.put.storage_uri, found.put.policy.min_copies) == ("s3://models/2", 0)
    assert rolled_out_of(found.put) == IRIS
    again = rollout_of(changed, records(version(1), found.put))
    assert again == found


def test_a_third_version_takes_the_place_of_the_canary() -> None:
    canary = rollout_of(version(2, 10), records(version(1))).put
    found = rollout_of(version(3, 20), records(version(1), canary))
    assert (found.put.name, found.put.storage_uri) == (TRIAL, "s3://models/3")


@pytest.mark.parametrize("percent", [None, 100])
def test_all_of_the_traffic_ends_the_rollout(percent: int | None) -> None:
    canary = rollout_of(version(2, 10), records(version(1))).put
    found = rollout_of(version(2, percent), records(version(1), canary))
    assert found == Rollout(version(2), TRIAL)


def test_the_version_before_applied_again_ends_the_rollout() -> None:
    canary = rollout_of(version(2, 10), records(version(1))).put
    found = rollout_of(version(1, 10), records(version(1), canary))
    assert found == Rollout(version(1, 10), TRIAL)


def test_no_traffic_is_kept_for_a_version_that_cannot_be_served() -> None:
    broken = version(1)
    failure = LoadFailure(broken.key, "Unreadable", "wrong files", 1, 0.0, http_status=422)
    found = rollout_of(version(2, 10), {IRIS: ModelRecord(broken, failure=failure)})
    assert found.put.name == IRIS


def test_a_model_of_the_canarys_name_is_left_alone() -> None:
    other = replace(version(9), name=TRIAL)
    assert trial_of(IRIS, records(other)) is None
    with pytest.raises(InvalidModel, match="needs the name iris-canary"):
        rollout_of(version(2, 10), records(version(1), other))
    assert rollout_of(version(2), records(version(1), other)).ended is None


def test_a_rollout_of_a_declared_canary_is_refused() -> None:
    document = declared(canaryTrafficPercent=10)
    document["metadata"]["annotations"] = {"pilotlight.io/canary-of": "other"}
    with pytest.raises(InvalidModel, match="canaryTrafficPercent must be absent beside"):
        read(document)


def test_kserves_canaries_are_refused_with_the_objects_that_mean_the_same() -> None:
    canary = {
        "predictor": {"name": "v2", "model": {"storageUri": "s3://models/v2"}},
        "trafficPercent": 10,
    }
    with pytest.raises(InvalidModel) as caught:
        read(declared(spec={"canary": [canary]}, timeout=30))
    head, _, objects = str(caught.value).partition("declare each as an object of its own: ")
    assert "spec.canary is not supported; " in head
    (found,) = read_documents([("canary.yaml", objects)])
    assert (str(found.name), found.storage_uri) == ("default/iris-v2", "s3://models/v2")
    assert (found.policy.canary_of, found.policy.canary_percent) == ("iris", 10)
    assert (found.format, found.policy.deadline_s, found.warnings) == ("sklearn", 30.0, ())
    assert yaml.safe_load(objects)["kind"] == "InferenceService"


def test_kserves_old_version_is_refused_with_what_to_move() -> None:
    old: dict[str, Any] = {"apiVersion": "serving.kserve.io/v1alpha2", "kind": "InferenceService"}
    old |= {"metadata": {"name": "iris"}, "spec": {"default": {"predictor": {"sklearn": {}}}}}
    with pytest.raises(InvalidModel, match=r"move spec\.default\.predictor to spec\.predictor"):
        read_documents([("old.yaml", yaml.safe_dump(old))])
