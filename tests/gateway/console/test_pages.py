"""Pages of the console from a real gateway: what they show, to whom, and how they escape it."""

import base64
import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.console.overview import MAX_STREAMS_OF_TENANT
from registry.domain.model import ModelSpec
from registry.domain.records import PlacedPod, PlacedReplica, PlacementRecord, PlannedModel
from registry.redis.client import Registry
from registry.redis.reports import AutoscalerLog
from registry.redis.workflow_log import WorkflowLog
from tests import servers
from tests.gateway.gateway_harness import GatewayHarness, running_harness

KEYS = {"red": "red-key-red-key-red", "blue": "blue-key-blue-key", "_operator": "op-key-op-key-op"}


def page(harness: GatewayHarness, path: str, **headers: str) -> httpx.Response:
    return harness.client.get(f"{harness.gateway.url}/console{path}", headers=headers)


def has_stream(harness: GatewayHarness, **headers: str) -> bool:
    """Whether the tenant gets one more stream."""
    url = f"{harness.gateway.url}/console/events"
    with harness.client.stream("GET", url, headers=headers) as response:
        return response.status_code == 200


def first_event(harness: GatewayHarness, query: str = "", **headers: str) -> dict[str, Any]:
    url = f"{harness.gateway.url}/console/events{query}"
    with harness.client.stream("GET", url, headers=headers) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        for line in response.iter_lines():
            if line.startswith("data: "):
                found: dict[str, Any] = json.loads(line.removeprefix("data: "))
                return found
    raise AssertionError("no event")


def test_the_overview_has_pods_models_and_no_outside_resource(
    shared: GatewayHarness, spec: ModelSpec
) -> None:
    response = page(shared, "")
    assert response.status_code == 200
    assert str(spec.name) in response.text
    assert "pod-a" in response.text
    assert "//" not in response.text.replace("http://www.w3.org", "")
    assert "default-src 'none'" in response.headers["content-security-policy"]
    for asset in ("console.css", "console.js", "chart.js", "uplot.min.js", "uplot.min.css"):
        assert f"/console/assets/{asset}" in response.text
        assert page(shared, f"/assets/{asset}").status_code == 200


def test_events_begin_with_everything(shared: GatewayHarness, spec: ModelSpec) -> None:
    event = first_event(shared)
    assert event["rows"][str(spec.name)]["cells"] == {"pod-a": "device"}
    assert event["pods"]["pod-a"]["slots"] == 4
    assert first_event(shared, "?search=absent")["order"] == []


def test_a_models_events_have_its_requests_and_copies(
    shared: GatewayHarness, spec: ModelSpec
) -> None:
    shared.predict(spec)
    url = f"{shared.gateway.url}/console/events?model={spec.name}"
    requests = 0
    with shared.client.stream("GET", url) as response:
        for line in response.iter_lines():
            event = json.loads(line.removeprefix("data: ")) if line.startswith("data: ") else {}
            requests += sum(point[1] for point in event.get("points", []))
            if requests and event["levels"]:
                break
    # one copy, and no autoscaler that expects requests
    assert event["levels"][-1][1:] == [1, 0.0, 0.0, 0.0]


def test_a_request_page_explains_the_request(shared: GatewayHarness, spec: ModelSpec) -> None:
    shared.predict(spec, x_request_id="what/now")
    response = page(shared, "/requests/what/now")
    assert response.status_code == 200
    assert "warm at pod-a" in response.text
    assert "Ways that were weighed" in response.text
    assert "Time by stage" in response.text
    listed = page(shared, f"/requests?model={spec.name.name}&start=warm").text
    assert "/console/requests/what/now" in listed
    assert "what/now" not in page(shared, "/requests?start=disk").text
    assert page(shared, "/requests/absent").status_code == 404


def test_a_model_page_shows_its_state(shared: GatewayHarness, spec: ModelSpec) -> None:
    shared.predict(spec)
    text = page(shared, f"/models/{spec.name}").text
    assert "at pod-a" in text
    assert "storageUri: file:///" in text
    assert "Mean time by stage" in text
    assert page(shared, "/models/default/absent").status_code == 404


@pytest.mark.slow
def test_while_redis_is_away_pages_say_how_old_they_are(
    client: httpx.Client, tmp_path: Path
) -> None:
    redis = servers.RedisServer(tmp_path / "redis")
    redis.start()
    try:
        with servers.gateway(tmp_path, redis_url=redis.url, pool="away") as gateway:
            harness = GatewayHarness(redis.url, "away", gateway, client)
            spec = harness.declare()
            assert "old." not in page(harness, "").text
            redis.stop()
            servers.wait_until(
                lambda: first_event(harness)["totals"]["age_s"] > 3, what="the copy is old"
            )
            text = page(harness, "").text
            assert "This gateway's copy of the cluster is" in text
            assert str(spec.name) in text
            assert "Redis does not answer" in page(harness, "/autoscaler").text
            assert page(harness, f"/models/{spec.name}").status_code == 200
    finally:
        redis.stop()


def test_the_autoscaler_page_says_that_none_runs(shared: GatewayHarness) -> None:
    assert "No autoscaler runs." in page(shared, "/autoscaler").text


def test_the_autoscaler_page_shows_the_plan_of_placement(harness: GatewayHarness) -> None:
    replica = PlacedReplica("default/placed", "cpu-1", 8, 50.0, 12.5)
    planned = PlannedModel("default/left-out", 20.0, 0.2, 0.0, "no accelerator is left")
    record = PlacementRecord(
        "usher",
        "rates changed",
        10.0,
        ("cpu-1",),
        (planned,),
        (replica,),
        (PlacedPod("placed-7", replica, 10.0),),
    )

    async def place(registry: Registry) -> None:
        log = AutoscalerLog(registry)
        token = await log.acquire_lead("test", ttl_s=30.0)
        assert token is not None
        assert await log.set_placement(token, record)

    harness.run(place)
    harness.wait_synced()
    text = page(harness, "/autoscaler").text
    for shown in ("rates changed", "cpu-1", "50 %", "placed-7", "no accelerator is left"):
        assert shown in text
    assert 'href="/console/models/default/placed"' in text


def test_a_run_of_a_workflow_is_found_by_namespace_and_id(shared: GatewayHarness) -> None:
    response = page(shared, "/runs?namespace=team&run=a/b")
    assert response.status_code == 307
    assert response.headers["location"] == "/serving/team/all/v1/workflows/-/runs/a%2Fb"


def test_docs_describe_the_interface_without_a_network(shared: GatewayHarness) -> None:
    response = shared.client.get(f"{shared.gateway.url}/docs", follow_redirects=True)
    assert response.status_code == 200
    assert "POST /v1/models/{name}:predict" in response.text
    assert "src=" not in response.text
    assert "https://" not in response.text


MARKUP = "<script>alert(1)</script>"


def test_names_are_escaped(harness: GatewayHarness) -> None:
    spec = harness.declare(name=MARKUP.replace("/", ""))
    harness.start_pods("pod-a", warm=spec)
    for path in ("", "/requests", f"/requests?model={MARKUP}", f"/models/{spec.name}"):
        text = page(harness, path).text
        assert "<script>alert" not in text, path
    sent = harness.client.post(
        f"{harness.gateway.url}/v1/models/absent:predict", headers={"x-request-id": MARKUP}
    )
    assert sent.status_code == 404
    assert "<script>alert" not in page(harness, "/requests").text


def test_a_stream_ends_when_the_gateway_drains(
    redis: servers.RedisServer, client: httpx.Client, tmp_path: Any
) -> None:
    with servers.gateway(tmp_path, redis_url=redis.url, pool="console-drain") as gateway:
        with client.stream("GET", f"{gateway.url}/console/events") as response:
            lines = response.iter_lines()
            next(lines)
            gateway.process.terminate()
            for _ in lines:
                pass
        assert gateway.process.wait(timeout=60) == 0


@pytest.fixture(scope="module")
def guarded(
    redis: servers.RedisServer, client: httpx.Client, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[GatewayHarness]:
    keys = tmp_path_factory.mktemp("keys")
    for tenant, key in KEYS.items():
        (keys / tenant).write_text(key)
    folder = tmp_path_factory.mktemp("guarded")
    with running_harness(folder, redis.url, "console", client, api_keys=keys) as harness:
        harness.declare("secret", namespace="blue")
        harness.start_pods("pod-a", slots=4, warm=harness.declare("wise", namespace="red"))
        yield harness


def basic(user: str, key: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{key}".encode()).decode()


PATHS = ("", "/requests", "/autoscaler", "/models/red/wise", "/events", "/assets/console.js")


@pytest.mark.parametrize("path", PATHS)
def test_a_browser_is_asked_for_a_key(guarded: GatewayHarness, path: str) -> None:
    for headers in ({}, {"authorization": basic("red", KEYS["blue"])}):
        response = page(guarded, path, **headers)
        assert response.status_code == 401
        assert response.headers["www-authenticate"].startswith("Basic realm=")
        assert "wise" not in response.text


def test_a_tenant_sees_nothing_of_another(guarded: GatewayHarness) -> None:
    red = {"authorization": basic("red", KEYS["red"])}
    blue = {"authorization": basic("blue", KEYS["blue"])}
    predict = f"{guarded.gateway.url}/serving/red/wise/v1/models/wise:predict"
    sent = guarded.client.post(
        predict, content=b'{"instances": [1]}', headers={**red, "x-request-id": "mine"}
    )
    assert sent.status_code == 200
    assert first_event(guarded, **red)["order"] == ["red/wise"]
    assert first_event(guarded, **blue)["order"] == ["blue/secret"]
    assert page(guarded, "/requests/mine", **red).status_code == 200
    assert page(guarded, "/requests/mine", **blue).status_code == 404
    assert page(guarded, "/models/blue/secret", **red).status_code == 404
    for path in ("", "/requests", "/autoscaler"):
        assert "secret" not in page(guarded, path, **red).text
        assert "wise" not in page(guarded, path, **blue).text
    assert "Placement" not in page(guarded, "/autoscaler", **red).text


def test_operators_are_shown_a_command_for_their_pool(guarded: GatewayHarness) -> None:
    red = {"authorization": basic("red", KEYS["red"])}
    operator = {"authorization": basic("", KEYS["_operator"])}
    assert "pilotlight simulate" not in page(guarded, "/autoscaler", **red).text
    shown = page(guarded, "/autoscaler", **operator).text
    assert f"pilotlight simulate --pool {guarded.pool} --cluster live --trace live" in shown


def test_a_tenant_cannot_take_all_streams(guarded: GatewayHarness) -> None:
    red = {"authorization": basic("red", KEYS["red"])}
    blue = {"authorization": basic("blue", KEYS["blue"])}
    url = f"{guarded.gateway.url}/console/events"
    with ExitStack() as stack:
        client = stack.enter_context(
            httpx.Client(limits=httpx.Limits(max_connections=None), timeout=60)
        )
        kept = []
        for _ in range(MAX_STREAMS_OF_TENANT):
            response = stack.enter_context(client.stream("GET", url, headers=red, timeout=60))
            kept.append(response.iter_lines())  # a stream ends with its iterator
            assert next(kept[-1]).startswith("data:")
        assert not has_stream(guarded, **red)
        assert first_event(guarded, **blue)["order"] == ["blue/secret"]
    servers.wait_until(lambda: has_stream(guarded, **red), what="a stream of the tenant has ended")


def test_operators_see_all(guarded: GatewayHarness) -> None:
    for user in ("", "operator"):
        headers = {"authorization": basic(user, KEYS["_operator"])}
        assert first_event(guarded, **headers)["order"] == ["blue/secret", "red/wise"]
    assert page(guarded, "", authorization=f"Bearer {KEYS['_operator']}").status_code == 200


def test_another_site_cannot_send_requests_with_a_browsers_password(
    guarded: GatewayHarness,
) -> None:
    predict = f"{guarded.gateway.url}/serving/red/wise/v1/models/wise:predict"
    headers = {"authorization": basic("red", KEYS["red"]), "origin": "https://elsewhere.example"}
    response = guarded.client.post(predict, content=b'{"instances": [1]}', headers=headers)
    assert response.status_code == 403
    own = {**headers, "origin": guarded.gateway.url}
    assert (
        guarded.client.post(predict, content=b'{"instances": [1]}', headers=own).status_code == 200
    )


def test_a_browser_gets_errors_as_pages_and_scripts_as_json(shared: GatewayHarness) -> None:
    for path in ("/no/such/page", "/models/default/absent", "/requests/absent"):
        shown = page(shared, path, accept="text/html,*/*")
        assert shown.status_code == 404
        assert shown.headers["content-type"].startswith("text/html")
        assert "Error 404" in shown.text
        assert page(shared, path).json()["error"]


def test_the_latest_runs_of_workflows_have_a_page(shared: GatewayHarness) -> None:
    async def begin(registry: Registry) -> None:
        log = WorkflowLog(registry)
        for run, workflow in (("run-1", "debate"), ("run-2", "<expert>")):
            head = {"namespace": "team", "workflow": workflow, "begun_s": 1.0}
            token = await log.begin_run(run, head, "owner", lease_s=60)
            assert token is not None
            if run == "run-2":
                await log.end_run(run, token, {"status": "failed"}, kept_s=60)

    shared.run(begin)
    text = page(shared, "/workflows").text
    assert text.index("team/&lt;expert&gt;") < text.index("team/debate")
    assert ">failed</td>" in text
    assert ">running</td>" in text


def test_the_requests_of_ten_minutes_can_be_had_as_a_trace(
    shared: GatewayHarness, spec: ModelSpec
) -> None:
    shared.predict(spec)
    response = shared.client.get(f"{shared.gateway.url}/pilotlight/v1/trace")
    assert response.headers["content-type"].startswith("text/csv")
    lines = response.text.splitlines()
    assert lines[0] == "at_s,tenant,model"
    assert any(line.endswith(f",{spec.name.namespace},{spec.name.name}") for line in lines[1:])


def test_both_sides_of_a_canary_say_how_the_traffic_is_split(shared: GatewayHarness) -> None:
    stable = shared.declare()
    canary = shared.declare(canary_of=stable.name.name, canary_percent=20)
    text = page(shared, f"/models/{stable.name}").text
    assert f"Traffic: 80 %, {canary.name.name} 20 %" in text
    text = page(shared, f"/models/{canary.name}").text
    assert f"Traffic: 20 % of {stable.name.name}" in text
