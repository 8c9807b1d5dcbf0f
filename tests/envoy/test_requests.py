"""Requests that Envoy sends: body modes, streams, cold starts, lost clients and pickers."""

import json
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from registry.domain.model import ModelSpec
from tests import servers
from tests.envoy.conftest import StartEnvoy
from tests.envoy.envoy_proxy import Envoy
from tests.gateway.gateway_harness import GatewayHarness, wait_counts

MODES: dict[str, dict[str, Any]] = {
    "headers": {},
    "buffered": {"request_body_mode": "BUFFERED"},
    "full-duplex": {
        "request_body_mode": "FULL_DUPLEX_STREAMED",
        "request_trailer_mode": "SEND",
        "response_body_mode": "FULL_DUPLEX_STREAMED",
        "response_trailer_mode": "SEND",
    },
}


def mode(name: str) -> dict[str, Any]:
    heads = {"request_header_mode": "SEND", "response_header_mode": "SEND"}
    return {"processing_mode": {**heads, **MODES[name]}}


@pytest.mark.parametrize("name", MODES)
@pytest.mark.parametrize("by", ["path", "host"])
def test_path_or_host_name_the_model(
    harness: GatewayHarness, start_envoy: StartEnvoy, name: str, by: str
) -> None:
    spec = harness.declare(namespace="team")
    envoy = start_envoy(harness.start_pods("pod-a", warm=spec), **mode(name))
    model = spec.name.name
    path, host = {
        "path": (f"/serving/team/{model}/v2/models/{model}/infer", "gateway.example.com"),
        "host": (f"/v2/models/{model}/infer", f"{model}.team.example.com"),
    }[by]
    body = b"x" * 300_000
    response = harness.client.post(f"{envoy.url}{path}", content=body, headers={"host": host})
    assert (response.status_code, response.content) == (200, body)
    assert response.headers["x-pilotlight-pod"] == "pod-a"


@pytest.mark.parametrize("name", ["buffered", "full-duplex"])
@pytest.mark.parametrize("size", [10, 200_000])
def test_the_body_names_the_model(
    harness: GatewayHarness, start_envoy: StartEnvoy, name: str, size: int
) -> None:
    spec, pods = harness.start_warm_pod()
    envoy = start_envoy(pods, **mode(name))
    response = ask(harness, envoy, {"model": spec.name.name, "prompt": "x" * size})
    assert response.status_code == 200
    assert len(response.json()["prompt"]) == size
    unknown = ask(harness, envoy, {"model": "nothing"})
    assert unknown.status_code == 404
    assert unknown.json()["error"]["code"] == "model_not_found"


def test_a_header_of_the_body_based_router_names_the_model(
    harness: GatewayHarness, start_envoy: StartEnvoy
) -> None:
    spec, pods = harness.start_warm_pod()
    envoy = start_envoy(pods)
    named = {"x-gateway-model-name": spec.name.name}
    assert ask(harness, envoy, {}, **named).status_code == 200
    nameless = ask(harness, envoy, {"model": spec.name.name})
    assert nameless.status_code == 400
    assert "request_body_mode" in nameless.json()["error"]["message"]


def ask(harness: GatewayHarness, envoy: Envoy, body: Any, **headers: str) -> httpx.Response:
    url = f"{envoy.url}/openai/v1/completions"
    return harness.client.post(url, content=json.dumps(body), headers=headers)


def test_pods_get_no_commands_or_credentials_of_clients(
    harness: GatewayHarness, start_envoy: StartEnvoy
) -> None:
    spec, pods = harness.start_warm_pod()
    envoy = start_envoy(pods)
    sent = {
        "x-test": "response=headers",
        "x-pilotlight-load-token": "7",
        "x-pilotlight-step-queue": "1",
        "x-pilotlight-generation": "other",
        "k-network-probe": "queue",
        "x-mine": "kept",
    }
    response = harness.client.post(url_of(envoy, spec), content=b"{}", headers=sent)
    seen = response.json()["headers"]
    assert seen["x-mine"] == "kept"
    assert seen["x-pilotlight-generation"] == spec.generation
    assert not {"x-pilotlight-load-token", "x-pilotlight-step-queue", "k-network-probe"} & set(seen)


def test_what_is_no_inference_is_answered_by_the_gateway(
    harness: GatewayHarness, start_envoy: StartEnvoy
) -> None:
    spec, pods = harness.start_warm_pod()
    envoy = start_envoy(pods)
    base = f"{envoy.url}/v1/models/{spec.name.name}"
    assert harness.client.get(base).json() == {"name": spec.name.name, "ready": True}
    assert harness.client.get(f"{base}:predict").status_code == 405
    for path in ("/console", "/metrics", "/pilotlight/v1/pods"):
        assert harness.client.get(f"{envoy.url}{path}").status_code == 404
    assert pods.counts("pod-a")["executed"] == 0


def url_of(envoy: Envoy, spec: ModelSpec) -> str:
    return f"{envoy.url}/v1/models/{spec.name.name}:predict"


def test_a_cold_model_is_held_until_it_is_warm(
    harness: GatewayHarness, start_envoy: StartEnvoy
) -> None:
    spec, pods = harness.declare(), harness.start_pods("pod-a", slots=8)
    envoy = start_envoy(pods)
    wish = {"x-test": "load=hold"}
    held = [
        harness.threads.submit(
            harness.client.post, url_of(envoy, spec), content=b"{}", headers=wish
        )
        for _ in range(4)
    ]
    servers.wait_until(lambda: pods.counts("pod-a")["asked"] > 0, what="the model's load")
    pods.control("pod-a", "release")
    assert "remote" in [each.result().headers["x-pilotlight-start"] for each in held]
    assert pods.counts("pod-a")["loads"] == 1
    harness.wait_idle(pods)


@pytest.mark.parametrize("name", ["headers", "full-duplex"])
def test_a_stream_holds_its_slot_until_its_last_byte(
    harness: GatewayHarness, start_envoy: StartEnvoy, name: str
) -> None:
    spec, pods = harness.start_warm_pod()
    envoy = start_envoy(pods, **mode(name))
    with stream(harness, envoy, spec, "pieces=3,gap=hold") as response:
        pieces = response.iter_raw()
        assert next(pieces)  # before the others were sent
        assert harness.metric("pilotlight_gateway_reservations") == 1
        for _ in range(3):
            pods.control("pod-a", "release")
        assert sum(map(len, pieces)) > 0
    harness.wait_idle(pods)


def stream(harness: GatewayHarness, envoy: Envoy, spec: ModelSpec, wish: str) -> Any:
    return harness.client.stream(
        "POST", url_of(envoy, spec), content=b"{}", headers={"x-test": wish}
    )


def test_a_client_that_leaves_a_stream_frees_its_slot(
    harness: GatewayHarness, start_envoy: StartEnvoy
) -> None:
    spec, pods = harness.start_warm_pod()
    envoy = start_envoy(pods)
    with stream(harness, envoy, spec, "pieces=1000,gap=0.05") as response:
        assert next(response.iter_raw())
    wait_counts(pods, "pod-a", disconnected=1, busy=0)
    harness.wait_idle(pods)


@pytest.mark.parametrize("wish", ["delay=hold", "load=hold"])
def test_a_client_that_leaves_before_its_response_frees_its_slot(
    harness: GatewayHarness, start_envoy: StartEnvoy, wish: str
) -> None:
    spec = harness.declare()
    pods = harness.start_pods("pod-a", warm=() if "load" in wish else spec)
    envoy = start_envoy(pods)
    with httpx.Client(trust_env=False, timeout=1.0) as impatient, pytest.raises(httpx.ReadTimeout):
        impatient.post(url_of(envoy, spec), content=b"{}", headers={"x-test": wish})
    servers.wait_until(
        lambda: harness.metric("pilotlight_gateway_reservations") == 0, what="slot freed"
    )
    assert harness.metric("pilotlight_gateway_client_disconnects_total") == 1


def test_a_client_that_leaves_the_queue_is_forgotten(
    harness: GatewayHarness, start_envoy: StartEnvoy
) -> None:
    spec, pods = harness.start_warm_pod()
    envoy = start_envoy(pods)
    held = harness.threads.submit(
        harness.client.post, url_of(envoy, spec), content=b"{}", headers={"x-test": "delay=hold"}
    )
    wait_counts(pods, "pod-a", busy=1)
    with httpx.Client(trust_env=False, timeout=0.5) as impatient, pytest.raises(httpx.ReadTimeout):
        impatient.post(url_of(envoy, spec), content=b"{}")
    harness.wait_queued(0)
    pods.control("pod-a", "release")
    assert held.result().status_code == 200
    assert pods.counts("pod-a")["asked"] == 1


@pytest.mark.parametrize("is_open", [True, False], ids=["fail-open", "fail-closed"])
def test_a_killed_picker(harness: GatewayHarness, start_envoy: StartEnvoy, is_open: bool) -> None:
    spec, pods = harness.start_warm_pod()
    envoy = start_envoy(pods, failure_mode_allow=is_open)
    assert harness.client.post(url_of(envoy, spec), content=b"{}").status_code == 200
    harness.gateway.process.kill()
    harness.gateway.process.wait()
    answers = {
        harness.client.post(url_of(envoy, spec), content=b"{}").status_code for _ in range(3)
    }
    assert answers == ({200} if is_open else {500})
    assert pods.counts("pod-a")["asked"] == (4 if is_open else 1)


def test_a_picker_that_stops_answers_what_it_holds(
    harness: GatewayHarness, start_envoy: StartEnvoy
) -> None:
    spec, pods = harness.start_warm_pod()
    envoy = start_envoy(pods)
    wish = {"x-test": "delay=hold"}
    held = [
        harness.threads.submit(
            harness.client.post, url_of(envoy, spec), content=b"{}", headers=wish
        )
        for _ in range(2)
    ]
    harness.wait_queued(1)
    harness.gateway.process.terminate()
    for at in (1, 2):
        wait_counts(pods, "pod-a", asked=at, busy=1)
        pods.control("pod-a", "release")
    assert [each.result().status_code for each in held] == [200, 200]
    assert harness.gateway.process.wait(timeout=30) == 0


def test_1000_requests_over_three_models_through_a_cold_start(
    harness: GatewayHarness, start_envoy: StartEnvoy
) -> None:
    specs = [harness.declare(queue_depth=1000) for _ in range(3)]
    pods = harness.start_pods("pod-a", "pod-b", slots=4, load_s=1.0)
    envoy = start_envoy(pods)

    def served() -> Iterator[tuple[int, int, str]]:
        def send(number: int) -> tuple[int, int, str]:
            found = harness.client.post(url_of(envoy, specs[number % 3]), content=b"%d" % number)
            return (
                found.status_code,
                int(found.content) - number,
                found.headers["x-pilotlight-start"],
            )

        with ThreadPoolExecutor(64) as threads:
            yield from threads.map(send, range(1000))

    seen = Counter(served())
    assert (
        sum(count for (status, offset, _), count in seen.items() if (status, offset) == (200, 0))
        == 1000
    )
    assert seen[200, 0, "remote"] >= 3
    assert pods.total("executed") == 1000
    harness.wait_idle(pods)
