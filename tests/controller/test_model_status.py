from dataclasses import replace
from typing import Any

import pytest

from controller.model_status import (
    FIRST_WRITE_DELAY_S,
    WRITE_INTERVAL_S,
    Copies,
    ModelFacts,
    count_copies,
    evaluate,
    make_status,
    seconds_until_write,
    withdrawn_status,
)
from controller.resources import ServiceObject, read_service
from registry.domain.model import LoadFailure, ModelName, Tier
from registry.domain.pod_index import Residency
from tests.controller.objects import service

NOW, LATER = "2026-01-01T00:00:10Z", "2026-01-01T00:00:20Z"
MODEL = read_service(service())
assert MODEL.spec is not None
FACTS = ModelFacts(
    pool_is_known=True,
    serving=MODEL.spec,
    failure=None,
    copies=Copies(),
    url="http://out/serving/team/translate",
    address="http://in/serving/team/translate",
)
FAILURE = LoadFailure(MODEL.spec.key, "ModelLoadFailed", "no such bucket", 2, 100.0)


def conditions(status: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {each["type"]: each for each in status["conditions"]}


def with_status(status: dict[str, Any]) -> ServiceObject:
    return replace(MODEL, status=status)


def test_fields_that_have_no_effect_are_named_in_the_condition() -> None:
    document = service()
    document["spec"]["predictor"]["model"]["resources"] = {"limits": {"cpu": "4"}}
    condition = evaluate(read_service(document), FACTS)
    assert condition.is_ready
    assert "spec.predictor.model.resources has no effect" in condition.message


def test_a_stopped_model_is_as_kserve_shows_it() -> None:
    document = service()
    document["metadata"]["annotations"]["serving.kserve.io/stop"] = "true"
    model = read_service(document)
    status = make_status(model, replace(FACTS, serving=model.spec), NOW)
    found = conditions(status)
    assert {found[kind]["status"] for kind in ("Ready", "PredictorReady")} == {"False"}
    assert {found[kind]["reason"] for kind in ("Ready", "PredictorReady", "Stopped")} == {"Stopped"}
    assert found["Stopped"]["status"] == "True"
    assert "url" not in status


def test_ready_says_that_everyone_may_call_the_model() -> None:
    assert "PILOTLIGHT_AUTH=open" not in evaluate(MODEL, FACTS).message
    assert "PILOTLIGHT_AUTH=open" in evaluate(MODEL, replace(FACTS, is_open=True)).message


def test_a_format_without_an_engine_is_ready_where_a_model_server_is() -> None:
    document = service()
    document["spec"]["predictor"]["model"]["modelFormat"] = {"name": "tensorflow"}
    model = read_service(document)
    facts = replace(FACTS, serving=model.spec)
    assert evaluate(model, facts).reason == "NoSupportingRuntime"
    assert evaluate(model, replace(facts, has_server=True)).is_ready


def test_a_cold_model_is_ready() -> None:
    status = make_status(MODEL, FACTS, NOW)
    assert {kind: each["status"] for kind, each in conditions(status).items()} == {
        "PredictorReady": "True",
        "IngressReady": "True",
        "Ready": "True",
        "Warm": "False",
    }
    assert status["deploymentMode"] == "ModelMesh"
    assert status["observedGeneration"] == 3
    assert status["url"] == "http://out/serving/team/translate"
    assert status["modelStatus"]["states"]["activeModelState"] == "Pending"


@pytest.mark.parametrize(
    ("copies", "state", "transition"),
    [
        pytest.param(Copies(device=2, loading=1), "Loaded", "InProgress", id="device"),
        pytest.param(Copies(loading=1), "Loading", "InProgress", id="loading"),
        pytest.param(Copies(host=1), "Standby", "UpToDate", id="host"),
        pytest.param(Copies(disk=1), "Standby", "UpToDate", id="disk"),
    ],
)
def test_states_by_tier(copies: Copies, state: str, transition: str) -> None:
    model_status = make_status(MODEL, replace(FACTS, copies=copies), NOW)["modelStatus"]
    assert model_status["states"]["activeModelState"] == state
    assert model_status["transitionStatus"] == transition
    assert model_status["copies"] == {"failedCopies": 0, "totalCopies": copies.device}


def test_canaries_are_the_latest_revision() -> None:
    assert MODEL.spec is not None
    following = replace(MODEL.spec, name=ModelName("team", "translate-next"))
    other = replace(MODEL.spec, name=ModelName("team", "translate-other"))
    canaries = ((following, 20), (other, 5))
    predictor = make_status(MODEL, replace(FACTS, canaries=canaries), NOW)["components"][
        "predictor"
    ]
    own, new = f"translate-{MODEL.spec.generation}", f"translate-next-{following.generation}"
    assert predictor["latestReadyRevision"] == new
    assert predictor["previousRolledoutRevision"] == own
    assert predictor["traffic"] == [
        {"latestRevision": True, "percent": 20, "revisionName": new},
        {
            "latestRevision": False,
            "percent": 5,
            "revisionName": f"translate-other-{other.generation}",
        },
        {"latestRevision": False, "percent": 75, "revisionName": own, "tag": "prev"},
    ]
    only = make_status(MODEL, FACTS, NOW)["components"]["predictor"]
    assert only["traffic"] == [{"latestRevision": True, "percent": 100, "revisionName": own}]


def test_a_failed_load_is_not_ready_unless_a_copy_is_warm() -> None:
    failed = make_status(MODEL, replace(FACTS, failure=FAILURE), NOW)
    assert conditions(failed)["Ready"]["status"] == "False"
    assert conditions(failed)["Ready"]["message"] == "attempt 2: no such bucket"
    assert failed["modelStatus"]["transitionStatus"] == "BlockedByFailedLoad"
    assert failed["modelStatus"]["lastFailureInfo"]["reason"] == "ModelLoadFailed"
    warm = make_status(MODEL, replace(FACTS, failure=FAILURE, copies=Copies(device=1)), NOW)
    assert conditions(warm)["Ready"]["status"] == "True"


def test_ignores_failures_of_older_generations() -> None:
    old = replace(FAILURE, key="team/translate@0000000000")
    assert conditions(make_status(MODEL, replace(FACTS, failure=old), NOW))["Ready"]["status"] == (
        "True"
    )


def test_not_ready_without_a_pool_or_with_mistakes() -> None:
    lost = make_status(MODEL, replace(FACTS, pool_is_known=False), NOW)
    assert conditions(lost)["Ready"]["reason"] == "PoolNotFound"
    wrong = replace(MODEL, spec=None, problems=("InferenceService team/translate: bad",))
    status = make_status(wrong, replace(FACTS, serving=None), NOW)
    assert conditions(status)["Ready"]["reason"] == "InvalidModel"
    assert status["modelStatus"]["lastFailureInfo"]["reason"] == "InvalidPredictorSpec"
    assert "url" not in status


def test_a_condition_keeps_its_time_until_it_changes() -> None:
    first = make_status(MODEL, FACTS, NOW)
    second = make_status(with_status(first), replace(FACTS, failure=FAILURE), LATER)
    assert conditions(second)["Ready"]["lastTransitionTime"] == LATER
    assert conditions(second)["Warm"]["lastTransitionTime"] == NOW


def test_counts_copies_by_tier() -> None:
    at = [
        Residency(Tier.DEVICE, None, 0.0, 1),
        Residency(Tier.DISK, Tier.DISK, 0.0, 1),
        Residency(Tier.HOST, None, 0.0, 1),
        Residency(Tier.REMOTE, None, 0.0, 1),
    ]
    assert count_copies(at) == Copies(device=1, host=1, disk=0, loading=1)


def wait(model: ServiceObject, facts: ModelFacts, *, age_s: float, since_last_s: float) -> object:
    status = make_status(model, facts, LATER)
    return seconds_until_write(model, status, age_s=age_s, since_last_s=since_last_s)


def test_the_same_status_is_not_written_again() -> None:
    written = with_status(make_status(MODEL, FACTS, NOW))
    assert wait(written, FACTS, age_s=100.0, since_last_s=100.0) is None


def test_waits_for_kserves_first_status() -> None:
    assert wait(MODEL, FACTS, age_s=0.25, since_last_s=100.0) == FIRST_WRITE_DELAY_S - 0.25
    assert wait(MODEL, FACTS, age_s=FIRST_WRITE_DELAY_S, since_last_s=100.0) == 0.0
    kserves = with_status({"conditions": [{"type": "Ready", "status": "Unknown"}]})
    assert wait(kserves, FACTS, age_s=0.1, since_last_s=100.0) == 0.0


def test_writes_readiness_at_once_and_batches_copies() -> None:
    written = with_status(make_status(MODEL, FACTS, NOW))
    failed = replace(FACTS, failure=FAILURE)
    assert wait(written, failed, age_s=100.0, since_last_s=0.5) == 0.0
    warm = replace(FACTS, copies=Copies(device=1))
    assert wait(written, warm, age_s=100.0, since_last_s=2.0) == WRITE_INTERVAL_S - 2.0
    assert wait(written, warm, age_s=100.0, since_last_s=WRITE_INTERVAL_S) == 0.0


def test_a_withdrawn_model_is_not_ready() -> None:
    served = make_status(MODEL, FACTS, NOW)
    status = withdrawn_status(with_status(served), "why", LATER)
    found = conditions(status)
    assert {
        kind: (each["status"], each["reason"]) for kind, each in found.items()
    } == dict.fromkeys(("PredictorReady", "IngressReady", "Ready"), ("False", "Withdrawn"))
    assert found["Ready"]["lastTransitionTime"] == LATER
    assert status["deploymentMode"] == "ModelMesh"
    assert status.keys().isdisjoint({"url", "address", "components", "modelStatus"})
