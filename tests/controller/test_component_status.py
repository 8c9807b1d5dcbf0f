"""The status of a model with a transformer or explainer, whose pods the controller makes."""

from typing import Any

import pytest

from controller.model_status import (
    Copies,
    ModelFacts,
    ReadyCondition,
    component_condition,
    evaluate,
    make_status,
)
from controller.resources import ServiceObject, read_service
from tests.controller.objects import service

NOW = "2026-01-01T00:00:10Z"
ADDRESS = "http://gateway.pilotlight.svc.cluster.local/serving/team/translate"
READY = ReadyCondition(True, "Available", "")
STARTING = ReadyCondition(None, "ExplainerNotReady", "the explainer is not ready: starting")


def model(*components: str, status: dict[str, Any] | None = None) -> ServiceObject:
    document = service(status=status)
    for each in components:
        document["spec"][each] = {"containers": [{"image": "mine"}]}
    return read_service(document)


def status_of(found: ServiceObject, **components: ReadyCondition) -> dict[str, Any]:
    facts = ModelFacts(True, found.spec, None, Copies(), ADDRESS, ADDRESS, components=components)
    return make_status(found, facts, NOW)


def conditions_of(status: dict[str, Any]) -> dict[str, str]:
    return {each["type"]: each["status"] for each in status["conditions"]}


def deployment(**conditions: tuple[str, str]) -> dict[str, Any]:
    listed = [{"type": k, "status": v, "message": m} for k, (v, m) in conditions.items()]
    return {"status": {"conditions": listed}}


@pytest.mark.parametrize(
    ("found", "is_ready", "says"),
    [
        pytest.param({}, None, "its pods are starting", id="new"),
        pytest.param(deployment(Available=("False", "no pod")), False, "no pod", id="no-pod"),
        pytest.param(
            deployment(Progressing=("False", "timed out"), Available=("False", "no pod")),
            False,
            "timed out",
            id="stuck",
        ),
        pytest.param(
            deployment(Progressing=("False", "quota"), Available=("True", "ok")),
            True,
            "",
            id="old-pods-serve",
        ),
    ],
)
def test_a_component_is_ready_by_its_deployment(
    found: dict[str, Any], is_ready: bool | None, says: str
) -> None:
    condition = component_condition("transformer", found)
    assert condition.is_ready is is_ready
    assert says in condition.message


def test_the_model_is_ready_with_its_components() -> None:
    found = model("transformer", "explainer")
    waiting = status_of(found, transformer=READY, explainer=STARTING)
    assert conditions_of(waiting) == {
        "PredictorReady": "Unknown",
        "IngressReady": "Unknown",
        "Ready": "Unknown",
        "TransformerReady": "True",
        "ExplainerReady": "Unknown",
        "Warm": "False",
    }
    facts = ModelFacts(True, found.spec, None, Copies(), "", "", components={"x": STARTING})
    assert evaluate(found, facts) == STARTING
    assert set(conditions_of(status_of(found, transformer=READY)).values()) == {"True", "False"}


def test_kserve_is_not_told_the_url_at_which_it_would_make_a_transformer() -> None:
    """`components.predictor.url`, for which it waits (KServe 0.20, `transformer.go`)."""
    components = status_of(model("transformer"), transformer=READY)["components"]
    assert "url" not in components["predictor"]
    assert components["transformer"] == {"url": "http://translate-transformer.team.svc:80"}
    assert status_of(model("explainer"), explainer=READY)["components"]["predictor"]["url"]


def test_a_mistake_keeps_the_components_in_the_status() -> None:
    """By which they are found once the model no longer has them."""
    wrong = service(status={"components": {"transformer": {"url": "x"}}})
    wrong["metadata"]["annotations"]["pilotlight.io/policy"] = "fastest"
    assert status_of(read_service(wrong))["components"] == {"transformer": {"url": "x"}}
