"""Selection of a model's version, as a function and in a real gateway process."""

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.http.targets import ModelTarget, Verb, openai_target, target_of_version
from gateway.routing.route_request import split_by_id
from registry.domain.canaries import Canary
from registry.domain.model import LoadFailure, ModelName, ModelSpec
from tests.gateway.gateway_harness import GatewayHarness

STABLE, NEXT, OTHER = (ModelName("team", name) for name in ("m", "m-next", "m-other"))
IDS = [f"request-{number}" for number in range(4000)]


def shares(*canaries: tuple[ModelName, int]) -> dict[ModelName, float]:
    declared = [Canary(name, percent) for name, percent in canaries]
    chosen = [split_by_id(STABLE, declared, request_id) for request_id in IDS]
    return {name: chosen.count(name) / len(IDS) for name in (STABLE, NEXT, OTHER)}


def test_versions_share_requests_by_percentage() -> None:
    found = shares((NEXT, 20), (OTHER, 10))
    assert found == pytest.approx({STABLE: 0.7, NEXT: 0.2, OTHER: 0.1}, abs=0.03)


def test_0_and_100_percent_are_exact() -> None:
    assert shares((NEXT, 100))[NEXT] == 1.0
    assert shares()[STABLE] == 1.0
    assert shares((NEXT, 40), (OTHER, 60))[STABLE] == 0.0


@given(st.text(max_size=40), st.integers(0, 100), st.integers(0, 100))
def test_an_id_keeps_its_canary_when_the_percentage_grows(
    request_id: str, percent: int, more: int
) -> None:
    before = split_by_id(STABLE, [Canary(NEXT, percent)], request_id)
    assert before == split_by_id(STABLE, [Canary(NEXT, percent)], request_id)
    after = split_by_id(STABLE, [Canary(NEXT, min(100, percent + more))], request_id)
    assert before == STABLE or after == NEXT


@pytest.mark.parametrize(
    ("target", "path"),
    [
        (ModelTarget(STABLE, "m", Verb.PREDICT), b"/v1/models/team~m-next:predict"),
        (ModelTarget(STABLE, "m", Verb.INFER), b"/v2/models/team~m-next/infer"),
        (openai_target("team", "m", "embeddings"), b"/serving/team~m-next/openai/v1/embeddings"),
    ],
)
def test_a_version_has_its_own_path_at_pods(target: ModelTarget, path: bytes) -> None:
    found = target_of_version(target, NEXT)
    assert (found.pod_path, found.label, found.name) == (path, "team/m-next", "m")
    assert found.version == b"m-next"


def declare_pair(harness: GatewayHarness, percent: int) -> tuple[ModelSpec, ModelSpec]:
    stable = harness.declare()
    canary = harness.declare(canary_of=stable.name.name, canary_percent=percent)
    harness.start_pods("pod-a", slots=4, warm=(stable, canary))
    return stable, canary


def version(response: httpx.Response) -> str:
    assert response.status_code == 200, response.text
    return response.headers["x-pilotlight-version"]


def test_responses_name_the_version_that_served_them(harness: GatewayHarness) -> None:
    stable, canary = declare_pair(harness, 50)
    ids = [f"r{number}" for number in range(40)]
    seen = {
        request_id: version(harness.predict(stable, x_request_id=request_id)) for request_id in ids
    }
    expected = {
        request_id: split_by_id(stable.name, [Canary(canary.name, 50)], request_id).name
        for request_id in ids
    }
    assert seen == expected
    assert set(seen.values()) == {stable.name.name, canary.name.name}
    counted = harness.metric(
        "pilotlight_gateway_requests_total", model=str(canary.name), code="200"
    )
    assert counted == list(seen.values()).count(canary.name.name)


def test_the_pod_gets_the_version_and_the_requested_name(harness: GatewayHarness) -> None:
    stable, canary = declare_pair(harness, 100)
    response = harness.predict(stable, x_test="response=headers").json()
    assert response["path"] == f"/v1/models/{canary.name.path_segment}:predict"
    assert response["headers"]["x-pilotlight-model-name"] == stable.name.name
    assert response["headers"]["x-pilotlight-generation"] == canary.generation


def test_openai_requests_are_shared_too(harness: GatewayHarness) -> None:
    stable, canary = declare_pair(harness, 100)
    response = harness.client.post(
        f"{harness.gateway.url}/openai/v1/embeddings", json={"model": stable.name.name}
    )
    assert version(response) == canary.name.name


def test_a_model_without_canaries_sends_no_version_header(harness: GatewayHarness) -> None:
    stable, canary = declare_pair(harness, 100)
    assert "x-pilotlight-version" not in harness.predict(canary).headers
    assert version(harness.predict(stable)) == canary.name.name


def test_a_deleted_canary_gets_no_requests(harness: GatewayHarness) -> None:
    stable, canary = declare_pair(harness, 100)
    assert version(harness.predict(stable)) == canary.name.name
    harness.run(lambda registry: registry.delete_models([canary.name]))
    harness.wait_synced()
    assert "x-pilotlight-version" not in harness.predict(stable).headers


def test_the_model_serves_the_share_of_a_canary_that_cannot_be_loaded(
    harness: GatewayHarness,
) -> None:
    stable = harness.declare()
    canary = harness.declare(canary_of=stable.name.name, canary_percent=100)
    harness.start_pods("pod-a", slots=4, warm=stable)
    harness.fail_load(LoadFailure(canary.key, "ModelLoadFailed", "no such bucket", 1, 9e12))
    assert version(harness.predict(stable)) == stable.name.name
