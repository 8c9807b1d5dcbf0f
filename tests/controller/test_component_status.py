"""The status of a model with a transformer, of which KServe writes parts as well."""

from dataclasses import replace
from typing import Any

import pytest

from controller.model_status import (
    Copies,
    ModelFacts,
    evaluate,
    make_status,
    predictor_url,
    seconds_until_write,
)
from controller.resources import ServiceObject, read_service
from registry.domain.model import ModelName
from tests.controller.objects import service

NOW, LATER = "2026-01-01T00:00:10Z", "2026-01-01T00:00:20Z"
ADDRESS = "http://gateway.pilotlight.svc.cluster.local/serving/team/translate"


def model(status: dict[str, Any] | None = None, *, explainer: bool = False) -> ServiceObject:
    document = service(status=status)
    document["spec"]["transformer"] = {"containers": [{"image": "mine"}]}
    if explainer:
        document["spec"]["explainer"] = {"art": {"type": "SquareAttack"}}
    return read_service(document)


def facts(found: ServiceObject) -> ModelFacts:
    return ModelFacts(True, found.spec, None, Copies(), ADDRESS, ADDRESS)


def condition(kind: str, status: str = "True", **more: str) -> dict[str, Any]:
    return {"type": kind, "status": status, "lastTransitionTime": NOW, **more}


KSERVES: dict[str, Any] = {
    "url": "http://translate-transformer.team.example.com",
    "address": {"url": "http://translate-transformer.team.svc.cluster.local"},
    "observedGeneration": 1,
    "conditions": [
        condition("IngressReady"),
        condition("Ready"),
        condition("Stopped", "False"),
        condition("TransformerReady", severity="Info"),
    ],
    "components": {"transformer": {"url": "http://translate-transformer.team.example.com"}},
}


def test_kserve_is_told_the_predictors_host() -> None:
    assert predictor_url(ModelName("team", "m"), ADDRESS) == "http://m-predictor.team.svc"
    port = "http://gateway.example:8080/serving/team/m"
    assert predictor_url(ModelName("team", "m"), port) == "http://m-predictor.team.svc:8080"
    found = model()
    status = make_status(found, facts(found), NOW)
    assert status["components"]["predictor"]["url"] == "http://translate-predictor.team.svc"


def test_the_first_status_has_every_condition_that_kserve_expects() -> None:
    found = model()
    status = make_status(found, facts(found), NOW)
    kinds = {each["type"]: each["status"] for each in status["conditions"]}
    assert kinds == {
        "PredictorReady": "Unknown",
        "Warm": "False",
        "IngressReady": "Unknown",
        "Ready": "Unknown",
    }
    assert "url" not in status
    assert "observedGeneration" not in status
    assert status["deploymentMode"] == "ModelMesh"


def test_what_kserve_writes_stays_as_it_is() -> None:
    found = model(KSERVES)
    status = make_status(found, facts(found), LATER)
    for key in ("url", "address", "observedGeneration"):
        assert status[key] == KSERVES[key]
    assert status["components"]["transformer"] == KSERVES["components"]["transformer"]
    assert status["conditions"][:4] == KSERVES["conditions"]
    again = model(status)
    assert make_status(again, facts(again), LATER) == status
    assert seconds_until_write(again, status, age_s=99, since_last_s=99) is None


def test_the_order_in_which_kserve_sorts_conditions_is_kept() -> None:
    found = model(KSERVES)
    status = make_status(found, facts(found), LATER)
    status["conditions"].sort(key=lambda each: str(each["type"]))
    again = model(status)
    assert make_status(again, facts(again), LATER) == status


def test_numbers_that_kserve_leaves_out_are_not_written() -> None:
    found = model(KSERVES)
    loaded = replace(facts(found), copies=Copies(device=2))
    assert make_status(found, facts(found), NOW)["modelStatus"]["copies"] == {"failedCopies": 0}
    assert make_status(found, loaded, NOW)["modelStatus"]["copies"]["totalCopies"] == 2


@pytest.mark.parametrize(
    ("conditions", "is_ready", "reason", "says"),
    [
        pytest.param([], None, "TransformerNotReady", "has not reported", id="unknown"),
        pytest.param(
            [condition("TransformerReady", "False", message="no image")],
            False,
            "TransformerNotReady",
            "no image",
            id="no transformer",
        ),
        pytest.param(
            [condition("TransformerReady"), condition("ExplainerReady", "False", reason="Bad")],
            False,
            "ExplainerNotReady",
            "Bad",
            id="no explainer",
        ),
        pytest.param(
            [condition("TransformerReady"), condition("ExplainerReady")],
            True,
            "Served",
            "serves the model",
            id="both",
        ),
    ],
)
def test_the_model_is_ready_with_its_components(
    conditions: list[dict[str, Any]], is_ready: bool | None, reason: str, says: str
) -> None:
    found = model({"conditions": conditions}, explainer=True)
    ready = evaluate(found, facts(found))
    assert (ready.is_ready, ready.reason) == (is_ready, reason)
    assert says in ready.message


def test_a_change_of_readiness_is_written_at_once() -> None:
    before = model(KSERVES)
    status = make_status(before, facts(before), NOW)
    gone = [each for each in status["conditions"] if each["type"] != "TransformerReady"]
    found = model({**status, "conditions": [*gone, condition("TransformerReady", "False")]})
    after = make_status(found, facts(found), LATER)
    assert seconds_until_write(found, after, age_s=99, since_last_s=0.1) == 0.0


def test_a_service_that_could_not_be_made_is_said() -> None:
    found = model(KSERVES)
    ready = evaluate(found, replace(facts(found), component_problem="Service x exists"))
    assert (ready.is_ready, ready.message) == (False, "Service x exists")
