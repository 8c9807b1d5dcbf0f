"""Transformers and explainers as declared: accepted, lacking something, or refused by name."""

from typing import Any

import pytest

from controller.resources import read_service
from registry.domain.model import ModelSpec
from registry.domain.records import decode, encode_spec
from registry.errors import InvalidModel
from registry.inference_service.reader import read_object
from tests.controller.objects import service

TRANSFORMER = {"containers": [{"name": "kserve-container", "image": "mine"}]}
EXPLAINER = {"containers": [{"image": "explains"}]}


def document(annotations: dict[str, str] | None = None, **parts: Any) -> dict[str, Any]:
    found = service()
    found["spec"].update(parts)
    found["metadata"]["annotations"].update(annotations or {})
    return found


def on_a_machine(**parts: Any) -> ModelSpec:
    return read_object(document(**parts))


def on_a_cluster(**parts: Any) -> ModelSpec:
    found = read_service(document(**parts))
    assert found.spec is not None, found.problems
    return found.spec


@pytest.mark.parametrize(
    ("parts", "names"),
    [
        ({"transformer": TRANSFORMER}, "spec.transformer is run"),
        ({"explainer": EXPLAINER}, "spec.explainer is run"),
        (
            {"transformer": TRANSFORMER, "explainer": EXPLAINER},
            "spec.transformer and spec.explainer are run",
        ),
    ],
)
def test_one_machine_says_that_containers_need_a_cluster(parts: Any, names: str) -> None:
    found = on_a_machine(**parts)
    assert found.needs.startswith(names)
    assert "needs a cluster" in found.needs
    assert (found.transformer, found.explainer) == ("", "")


def test_a_cluster_has_their_addresses() -> None:
    found = on_a_cluster(transformer=TRANSFORMER, explainer=EXPLAINER)
    assert found.needs == ""
    assert found.transformer == "translate-transformer.team.svc:80"
    assert found.explainer == "translate-explainer.team.svc:80"
    assert decode(ModelSpec, encode_spec(found)) == found


def test_components_leave_the_generation_as_it_is() -> None:
    assert on_a_cluster(transformer=TRANSFORMER).key == on_a_cluster().key


def test_an_explainer_alone_is_called_at_its_address() -> None:
    found = on_a_cluster(explainer=EXPLAINER)
    assert found.needs == ""
    assert (found.transformer, found.explainer) == ("", "translate-explainer.team.svc:80")


def test_an_explainer_that_kserve_has_an_image_for_needs_one_here() -> None:
    assert (
        "spec.explainer has no containers" in on_a_cluster(explainer={"art": {"type": "x"}}).needs
    )


def test_other_needs_stay_on_a_cluster() -> None:
    changed = document(transformer=TRANSFORMER)
    changed["spec"]["predictor"]["model"]["modelFormat"] = {"name": "tensorflow"}
    found = read_service(changed)
    assert found.spec is not None
    assert "tf2onnx" in found.spec.needs
    assert "cluster" not in found.spec.needs


@pytest.mark.parametrize(
    ("parts", "annotations", "says"),
    [
        ({"transformer": {}}, {}, "spec.transformer must be an object"),
        ({"transformer": ["x"]}, {}, "spec.transformer must be an object"),
        ({"transformer": {"containers": []}}, {}, "spec.transformer.containers must be a list"),
        ({"transformer": {"containers": [1]}}, {}, "spec.transformer.containers must be a list"),
        ({"explainer": "alibi"}, {}, "spec.explainer must be an object"),
        ({"explainer": {"containers": "x"}}, {}, "spec.explainer.containers must be a list"),
        (
            {"transformer": {**TRANSFORMER, "logger": {"url": "http://x"}}},
            {},
            "spec.transformer.logger is not supported; write spec.predictor.logger",
        ),
        (
            {"transformer": TRANSFORMER},
            {"pilotlight.io/canary-of": "other", "pilotlight.io/canary-percent": "5"},
            "spec.transformer is not supported with pilotlight.io/canary-of",
        ),
        (
            {"explainer": EXPLAINER},
            {"pilotlight.io/application": "app"},
            "spec.explainer is not supported with pilotlight.io/application",
        ),
    ],
)
def test_what_cannot_be_is_refused_by_name(
    parts: Any, annotations: dict[str, str], says: str
) -> None:
    with pytest.raises(InvalidModel, match=says):
        read_object(document(annotations, **parts))


def test_a_name_without_room_for_its_services_is_refused() -> None:
    changed = document(transformer=TRANSFORMER)
    changed["metadata"]["name"] = "m" * 52
    with pytest.raises(InvalidModel, match="at most 51 characters"):
        read_object(changed)
