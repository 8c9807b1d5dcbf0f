"""Names as kubectl takes and prints them."""

import pytest

from pilotlight.commands.kinds import (
    APPLICATION,
    GRAPH,
    MODEL,
    Kind,
    ObjectName,
    parse_model_names,
    parse_object_names,
)
from pilotlight.errors import InvalidInput
from registry.domain.model import ModelName


@pytest.mark.parametrize(
    "text",
    [
        "embed",
        "team/embed",
        "isvc/embed",
        "inferenceservice/embed",
        "inferenceservices/embed",
        "InferenceService/embed",
        "inferenceservice.serving.kserve.io/embed",
        "inferenceservices.v1beta1.serving.kserve.io/embed",
        "isvc/team/embed",
        "model/embed",
        "models.pilotlight.io/embed",
        "models.v1alpha1.pilotlight.io/embed",
    ],
)
def test_a_model_with_or_without_its_kind(text: str) -> None:
    assert parse_model_names([text], "team") == [ModelName("team", "embed")]


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        pytest.param(["ig/chain"], [(GRAPH, "chain")], id="short"),
        pytest.param(
            ["inferenceapplication.pilotlight.io/a", "b"],
            [(APPLICATION, "a"), (None, "b")],
            id="as-apply-prints",
        ),
        pytest.param(["isvc", "a", "b"], [(MODEL, "a"), (MODEL, "b")], id="kind-first"),
        pytest.param(["isvc"], [(None, "isvc")], id="one-named-like-a-kind"),
        pytest.param(["a", "a"], [(None, "a")], id="twice"),
    ],
)
def test_kinds_of_objects(names: list[str], expected: list[tuple[Kind | None, str]]) -> None:
    found = [ObjectName(kind, ModelName("default", name)) for kind, name in expected]
    assert parse_object_names(names, None) == found


@pytest.mark.parametrize("text", ["", "a/", "/a", "a/b/c", "isvc/", "isvc.example.org/team/a"])
def test_refuses_what_names_nothing(text: str) -> None:
    with pytest.raises(InvalidInput, match="a name is NAME, NAMESPACE/NAME or KIND/NAME, was"):
        parse_object_names([text], None)
