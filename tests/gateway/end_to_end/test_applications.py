"""Requests to applications, at a real gateway with pods of the pod program."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from registry.domain.application import (
    AccuracyProfile,
    ApplicationSpec,
    InputTensor,
    SelectionPolicy,
    SneakPeekSpec,
)
from registry.domain.model import ModelName, ModelSpec
from registry.domain.pod import PodReport, Samples
from registry.domain.tenant_rules import TenantRules
from registry.errors import InvalidModel
from registry.redis.client import Registry
from tests.gateway.gateway_harness import GatewayHarness
from tests.servers import wait_until
from tests.variants.test_look_client import train_parity

CLASSES = ("no", "yes")
POOR, GOOD = ((6, 4), (4, 6)), ((9, 1), (1, 9))
EVEN, ODD = ((9, 1), (6, 4)), ((6, 4), (1, 9))
"""Good at the first and at the second class."""
DIGITS = ApplicationSpec(ModelName("default", "digits"), CLASSES, deadline_s=10.0)


def _id(response: httpx.Response) -> str:
    return response.headers["x-request-id"]


def _declare(
    harness: GatewayHarness, *, application: ApplicationSpec = DIGITS, skewed: bool = False
) -> tuple[ModelSpec, ModelSpec]:
    """An application with a fast, poor variant (10 ms) and a slow, good one (4 s), both warm."""
    name = application.name.name
    fast, slow = (harness.declare(f"{name}-{each}", application=name) for each in ("fast", "slow"))
    harness.start_pods("pod-a", slots=4, warm=(fast, slow))

    async def profile(registry: Registry) -> None:
        await registry.put_applications([application])
        profiles = ((fast, EVEN), (slow, ODD)) if skewed else ((fast, POOR), (slow, GOOD))
        for spec, confusion in profiles:
            profiled = AccuracyProfile(spec.key, application.classes, confusion)
            assert await registry.put_accuracy(profiled)
        pods = (await registry.cluster()).pods
        samples = [
            Samples(spec.key, measure, (value,) * 4)
            for spec, infer_s in ((fast, 0.01), (slow, 4.0))
            for measure, value in (
                ("infer", infer_s),
                ("preprocess", 0.001),
                ("postprocess", 0.001),
            )
        ]
        report = PodReport(samples=tuple(samples))
        await registry.heartbeat("pod-a", pods["pod-a"].epoch, report)

    harness.run(profile)
    harness.wait_synced()
    return fast, slow


def _ask(
    harness: GatewayHarness, path: str = "", *, content: bytes = b"{}", **headers: str
) -> httpx.Response:
    path = path or "/v1/models/digits:predict"
    return harness.client.post(
        f"{harness.gateway.url}{path}",
        content=content,
        headers={name.replace("_", "-"): value for name, value in headers.items()},
    )


def test_deadlines_choose_the_variant_and_the_response_says_which(harness: GatewayHarness) -> None:
    _declare(harness)
    loose = _ask(harness, x_request_id="loose")
    assert loose.status_code == 200, loose.text
    assert loose.headers["x-pilotlight-variant"] == "digits-slow"
    assert loose.headers["x-pilotlight-expected-accuracy"] == "0.9000"
    assert loose.headers["x-pilotlight-expected-utility"] == "0.9000"
    tight = _ask(harness, x_pilotlight_deadline_ms="1000")
    assert tight.headers["x-pilotlight-variant"] == "digits-fast"
    assert tight.headers["x-pilotlight-expected-accuracy"] == "0.6000"
    explained: dict[str, Any] = harness.explain("loose")["selection"]
    assert explained["variant"] == "digits-slow"
    assert explained["planned_pod"] == "pod-a"
    fast, slow = explained["candidates"]
    assert (fast["variant"], slow["variant"]) == ("digits-fast", "digits-slow")
    assert (fast["soonest_utility"], slow["soonest_utility"]) == (0.6, 0.9)
    assert slow["soonest_s"] > 4.0 > fast["soonest_s"]


def test_the_console_leads_from_the_autoscaler_to_an_applications_window(
    harness: GatewayHarness,
) -> None:
    _declare(harness)
    asked = _ask(harness, x_request_id="shown")
    assert asked.status_code == 200, asked.text
    listed = harness.client.get(f"{harness.gateway.url}/console/autoscaler").text
    assert "/console/requests/shown" in listed
    page = harness.client.get(f"{harness.gateway.url}/console/requests/shown").text
    assert "1 request was planned together" in page
    assert "digits-slow (taken)" in page
    assert "digits-fast</th>" in page


def test_v1_v2_path_and_host_name_an_application_and_answers_bear_its_name(
    harness: GatewayHarness,
) -> None:
    fast, _ = _declare(harness)
    for path, host in (
        ("/v2/models/digits/infer", "127.0.0.1"),
        ("/serving/default/digits/v1/models/digits:predict", "127.0.0.1"),
        ("/v1/models/digits:predict", "digits.default.example.com"),
    ):
        response = _ask(
            harness, path, host=host, x_pilotlight_deadline_ms="1000", x_test="response=headers"
        )
        assert response.status_code == 200, response.text
        assert response.json()["headers"]["x-pilotlight-model-name"] == "digits"
        assert fast.name.path_segment in response.json()["path"]


def test_an_application_has_the_metadata_and_readiness_of_a_model(harness: GatewayHarness) -> None:
    _, slow = _declare(harness)
    url = f"{harness.gateway.url}/v2/models"
    found = harness.client.get(f"{url}/digits").json()
    of_variant = harness.client.get(f"{url}/{slow.name.name}").json()
    assert found == {**of_variant, "name": "digits", "versions": []}
    ready = harness.client.get(f"{url}/digits/ready")
    assert (ready.status_code, ready.json()) == (200, {"name": "digits", "ready": True})


def test_an_application_without_variants_is_not_ready_and_says_why(harness: GatewayHarness) -> None:
    empty = replace(DIGITS, name=ModelName("default", "empty"))
    harness.run(lambda registry: registry.put_applications([empty]))
    harness.wait_synced()
    for path in ("v2/models/empty", "v2/models/empty/ready", "v1/models/empty"):
        answer = harness.client.get(f"{harness.gateway.url}/{path}")
        assert answer.status_code == 503
        assert "application default/empty has no variants: annotate models" in answer.text


def test_the_policy_header_names_a_selection_policy(harness: GatewayHarness) -> None:
    fast, _ = _declare(harness)
    most = _ask(harness, x_pilotlight_policy="max-accuracy-edf", x_pilotlight_deadline_ms="1000")
    assert most.headers["x-pilotlight-variant"] == "digits-slow"
    wrong = _ask(harness, x_pilotlight_policy="random")
    assert wrong.status_code == 400
    assert "must be one of lo-edf" in wrong.text
    model = harness.predict(fast, x_pilotlight_policy="lo-edf")
    assert model.status_code == 400
    assert "lo-edf is for applications" in model.text


@pytest.mark.slow
def test_lateness_is_served_or_refused_as_declared(harness: GatewayHarness) -> None:
    _declare(harness)
    served = _ask(harness, x_pilotlight_deadline_ms="1000", x_test="delay=1.2")
    assert served.status_code == 200
    refusing = replace(DIGITS, refuses_late=True)
    harness.run(lambda registry: registry.put_applications([refusing]))
    harness.wait_synced()
    refused = _ask(harness, x_pilotlight_deadline_ms="1000", x_test="delay=hold")
    assert refused.status_code == 504


def test_requests_of_a_window_are_planned_together(harness: GatewayHarness) -> None:
    window = replace(
        DIGITS, window_s=1.0, is_window_fixed=True, policy=SelectionPolicy.GROUPED, deadline_s=20.0
    )
    _declare(harness, application=window)
    futures = [harness.threads.submit(_ask, harness, x_request_id=f"w{at}") for at in range(4)]
    assert {each.result().status_code for each in futures} == {200}
    sizes = [harness.explain(f"w{at}")["selection"]["requests_in_window"] for at in range(4)]
    assert max(sizes) > 1


@pytest.mark.slow
def test_the_look_answers_changes_the_variant_and_may_die(
    harness: GatewayHarness, tmp_path: Path
) -> None:
    train_parity(tmp_path)
    looking = replace(
        DIGITS,
        name=ModelName("default", "parity"),
        classes=("even", "odd"),
        deadline_s=20.0,
        inputs=(InputTensor("features", "FP32", (-1, 2)),),
        sneak_peek=SneakPeekSpec(f"file://{tmp_path}"),
        policy=SelectionPolicy.SNEAKPEEK,
    )
    _declare(harness, application=looking, skewed=True)

    def ask(row: list[float], **headers: str) -> httpx.Response:
        body = orjson.dumps({"instances": [row]})
        return _ask(harness, "/v1/models/parity:predict", content=body, **headers)

    refusal = "namespace default may not have file://"
    wait_until(lambda: refusal in harness.gateway.log, what="no rules grant nothing")
    assert ask([4.0, 0.0]).headers["x-pilotlight-variant"] != "short-circuit"
    harness.run(lambda registry: registry.put_rules(TenantRules()))
    while (answered := ask([4.0, 0.0])).headers["x-pilotlight-variant"] != "short-circuit":
        assert answered.status_code == 200  # the process starts: data-oblivious until then
    assert answered.json()["predictions"][0]["label"] == 0
    assert answered.json()["predictions"][0]["probabilities"] == pytest.approx([5.5 / 6, 0.5 / 6])
    assert answered.headers["x-pilotlight-reason"] == "short-circuit"
    explained = harness.explain(answered.headers["x-request-id"])["selection"]
    assert explained["look"] == "seen"
    assert explained["posterior"] == {"even": 0.9167, "odd": 0.0833}
    large = orjson.dumps({"instances": [[4.0, 0.0]], "padding": " " * (2 << 20)})
    unseen = _ask(harness, "/v1/models/parity:predict", content=large)
    assert unseen.headers["x-pilotlight-variant"] in ("parity-fast", "parity-slow")
    assert harness.explain(_id(unseen))["selection"]["look"] == "too-large"
    assert harness.metric("pilotlight_gateway_looks_total", outcome="too-large") == 1
    while (bad := ask([1.0, 2.0, 3.0])).status_code != 400:
        assert bad.status_code == 200  # the look took too long: its pods take any row
    assert "must have the shape [-1, 2], was [1, 3]" in bad.text
    aware = replace(looking, sneak_peek=SneakPeekSpec(f"file://{tmp_path}", short_circuit=False))
    harness.run(lambda registry: registry.put_applications([aware]))
    harness.wait_synced()
    chosen = {}
    for name, row in (("even", [4.0, 0.0]), ("odd", [0.0, 4.0])):
        while harness.explain(_id(response := ask(row)))["selection"]["look"] != "seen":
            assert response.status_code == 200
        chosen[name] = response.headers["x-pilotlight-variant"]
    assert chosen == {"even": "parity-fast", "odd": "parity-slow"}


def test_without_a_usable_variant_the_response_says_why(harness: GatewayHarness) -> None:
    name = "plain"
    application = replace(DIGITS, name=ModelName("default", name))
    harness.run(lambda registry: registry.put_applications([application]))
    harness.wait_synced()
    none = _ask(harness, f"/v1/models/{name}:predict")
    assert none.status_code == 503
    assert "has no variants" in none.text
    spec = harness.declare(application=name)
    unprofiled = _ask(harness, f"/v1/models/{name}:predict")
    assert f"{spec.name.name}: has no accuracy profile" in unprofiled.text
    other = AccuracyProfile(spec.key, ("a", "b", "c"), ((1, 0, 0), (0, 1, 0), (0, 0, 1)))
    harness.run(lambda registry: registry.put_accuracy(other))
    harness.wait_synced()
    assert "is of other classes" in _ask(harness, f"/v1/models/{name}:predict").text


def test_an_application_that_is_deleted_under_load_loses_no_request(
    harness: GatewayHarness,
) -> None:
    window = replace(DIGITS, window_s=0.4, is_window_fixed=True, deadline_s=20.0)
    _declare(harness, application=window)
    waiting = [harness.threads.submit(_ask, harness) for _ in range(6)]
    harness.run(lambda registry: registry.delete_applications([DIGITS.name]))
    harness.wait_synced()
    assert {each.result().status_code for each in waiting} <= {200, 404}
    assert _ask(harness).status_code == 404


def test_a_name_is_either_a_models_or_an_applications(harness: GatewayHarness) -> None:
    spec = harness.declare()
    with pytest.raises(InvalidModel, match="is that of a model"):
        harness.run(lambda registry: registry.put_applications([replace(DIGITS, name=spec.name)]))
    harness.run(lambda registry: registry.put_applications([DIGITS]))
    with pytest.raises(InvalidModel, match="is that of an InferenceApplication"):
        harness.declare("digits")
    assert harness.run(lambda registry: registry.delete_applications([DIGITS.name])) == []
    harness.wait_synced()
    assert _ask(harness).status_code == 404


@pytest.mark.slow
def test_a_request_that_kills_its_pods_is_refused_when_sent_again(harness: GatewayHarness) -> None:
    variants = _declare(harness)
    for name in ("pod-b", "pod-c", "pod-d", "pod-e"):
        harness.start_pods(name, warm=variants, lease_s=1)
    for _ in range(3):
        response = _ask(harness, content=b'{"instances": ["lethal"]}', x_test="die=1")
        assert response.status_code == 503, response.text
        assert "2 pods were lost with this request" in response.json()["error"]
