"""The OpenAPI document against what a real gateway process answers."""

import re
from collections.abc import Iterator
from typing import Any

import pytest

from gateway.http import openai
from registry.domain.model import ModelSpec
from tests.gateway.gateway_harness import GatewayHarness

NAMES = ("{declared}", "nobody", "a%2Fb", "%00", "a" * 300)
BODIES = (b"", b"{}", b"[1", b'{"model": "nobody"}', b'{"instances": [1]}')


@pytest.fixture(scope="module")
def document(shared: GatewayHarness) -> dict[str, Any]:
    found: dict[str, Any] = shared.client.get(f"{shared.gateway.url}/openapi.json").json()
    return found


def operations(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, item in document["paths"].items():
        for method, operation in item.items():
            yield path, method, operation


def test_every_status_that_is_sent_is_documented_with_its_error(
    shared: GatewayHarness, spec: ModelSpec, document: dict[str, Any]
) -> None:
    wrong = []
    for path, method, operation in operations(document):
        for name in NAMES if "{" in path else NAMES[:1]:
            for body in BODIES if method in ("post", "put") else (None,):
                shown = re.sub(r"\{\w+\}", name.format(declared=spec.name.name), path)
                response = shared.client.request(
                    method,
                    shared.gateway.url + shown,
                    content=body,
                    headers={"x-pilotlight-deadline-ms": "3000"},
                )
                documented = operation["responses"].get(str(response.status_code))
                is_error = response.status_code >= 400 and "ready" not in path
                has_form = not is_error or is_of_form(response.json(), documented)
                if documented is None or not has_form:
                    wrong.append((method, shown[:80], body, response.status_code, response.text))
    assert wrong == []


def is_of_form(error: Any, documented: dict[str, Any] | None) -> bool:
    if documented is None:
        return False
    schema = documented["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
    return isinstance(error["error"], dict if schema == "OpenAIError" else str)


def test_no_operation_has_fastapis_own_error(document: dict[str, Any]) -> None:
    text = str(document)
    assert "HTTPValidationError" not in text
    assert "Validation Error" not in text
    for path, method, operation in operations(document):
        if not path.endswith(("infer", "predict", "explain")) and "/openai/" not in path:
            unread = re.fullmatch(r"/v2/models/\{name\}(/versions/\{version\})?", path)
            assert ("422" in operation["responses"]) == (unread is not None), (method, path)


def test_every_operation_is_described_in_words_and_has_an_identity(
    document: dict[str, Any],
) -> None:
    identities = []
    for path, _, operation in operations(document):
        assert " " in operation["summary"], path
        assert operation["summary"].endswith("."), path
        assert operation["description"], path
        identities.append(operation["operationId"])
    assert len(set(identities)) == len(identities)


def test_inference_operations_have_an_example_and_a_command(document: dict[str, Any]) -> None:
    paths = ["/v1/models/{name}:predict", "/v2/models/{name}/infer"]
    paths += [f"/openai/v1/{endpoint}" for endpoint in openai.ENDPOINTS]
    for path in paths:
        for prefix in ("", "/serving/{namespace}/{name}"):
            operation = document["paths"][prefix + path]["post"]
            schema = operation["requestBody"]["content"]["application/json"]["schema"]
            assert set(schema["required"]) <= schema["example"].keys()
            assert "curl -X POST http://localhost:8080/" in operation["description"]
            assert {"400", "401", "404", "413", "429", "503"} <= operation["responses"].keys()
