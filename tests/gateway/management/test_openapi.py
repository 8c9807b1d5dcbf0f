"""The OpenAPI document of a real gateway process."""

import re
from collections.abc import Iterator
from typing import Any

import pytest

from gateway.http import openai
from tests.gateway.gateway_harness import GatewayHarness


@pytest.fixture(scope="module")
def document(shared: GatewayHarness) -> dict[str, Any]:
    found: dict[str, Any] = shared.client.get(f"{shared.gateway.url}/openapi.json").json()
    return found


def operations(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, item in document["paths"].items():
        for method, operation in item.items():
            yield path, method, operation


def test_every_operation_is_described_in_words_and_has_an_identity(
    document: dict[str, Any],
) -> None:
    identities = []
    for path, _, operation in operations(document):
        assert " " in operation["summary"], path
        assert operation["summary"].endswith("."), path
        assert operation["description"], path
        assert {"default", "422"} & operation["responses"].keys() == {"default"}, path
        given = {each["name"] for each in operation["parameters"] if each["in"] == "path"}
        assert given == set(re.findall(r"\{(\w+)", path)), path
        identities.append(operation["operationId"])
    assert len(set(identities)) == len(identities)


def test_inference_operations_have_an_example(document: dict[str, Any]) -> None:
    paths = ["/v1/models/{name}:predict", "/v2/models/{name}/infer"]
    paths += [f"/openai/v1/{endpoint}" for endpoint in openai.ENDPOINTS]
    for path in paths:
        for prefix in ("", "/serving/{namespace}/{name}"):
            operation = document["paths"][prefix + path]["post"]
            schema = operation["requestBody"]["content"]["application/json"]["schema"]
            assert set(schema["required"]) == schema["example"].keys()
