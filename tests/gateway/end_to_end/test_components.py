"""Transformers and explainers that fail, loop or are slow, at a real gateway process."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.dispatch.component_exchange import MAX_OF_ID
from registry.domain.model import ModelSpec
from tests import servers
from tests.gateway.end_to_end.test_disconnects import raw_request
from tests.gateway.gateway_harness import GatewayHarness
from tests.gateway.grpc import calls
from tests.http_server import Handler, http_server

pytestmark = pytest.mark.slow

KEY, OTHER_KEY = "red-key-red-key-red", "blue-key-blue-key-blue"
SECRET = "a-secret-of-the-pods"
JSON = {"content-type": "application/json"}


@dataclass
class Component:
    """A component's server: `handle` makes the response to each request's path and headers."""

    address: str
    seen: list[dict[str, str]] = field(default_factory=list)
    """Headers of all requests, with `:path`."""
    bodies: list[bytes] = field(default_factory=list)
    gone: threading.Event = field(default_factory=threading.Event)
    """Set once the gateway has closed the connection of a request that is held."""


@contextmanager
def component(handle: Callable[[Component, Handler, bytes], None]) -> Iterator[Component]:
    class Recording(Handler):
        def do_POST(self) -> None:
            body = self.body()
            started.bodies.append(body)
            headers = {name.lower(): value for name, value in self.headers.items()}
            started.seen.append({**headers, ":path": self.path})
            handle(started, self, body)

    with http_server(Recording) as address:
        started = Component(address)
        yield started


def says_so(started: Component, handler: Handler, body: bytes) -> None:
    handler.answer(200, json.dumps({"by": handler.path}).encode(), JSON)


def hangs(started: Component, handler: Handler, body: bytes) -> None:
    handler.connection.settimeout(60)
    if handler.connection.recv(1) == b"":
        started.gone.set()
    handler.close_connection = True


def closes(started: Component, handler: Handler, body: bytes) -> None:
    handler.close_connection = True


def breaks_off(started: Component, handler: Handler, body: bytes) -> None:
    handler.send_response(200)
    handler.send_header("content-length", "100")
    handler.end_headers()
    handler.wfile.write(b"beginning")
    handler.close_connection = True


def declare(
    harness: GatewayHarness, transformer: str = "", explainer: str = "", **policy: Any
) -> ModelSpec:
    """A model as the controller declares it."""
    spec = replace(harness.declare(**policy), transformer=transformer, explainer=explainer)
    harness.run(lambda registry: registry.put_models([spec]))
    harness.wait_synced()
    return spec


def explain(harness: GatewayHarness, spec: ModelSpec) -> httpx.Response:
    url = harness.url_of(spec).replace(":predict", ":explain")
    return harness.client.post(url, content=b"{}")


def reason(response: httpx.Response) -> tuple[int, str]:
    return response.status_code, response.headers["x-pilotlight-reason"]


@pytest.mark.parametrize(
    "path", ["/v1/models/{}:predict", "/v2/models/{}/infer", "/v1/models/{}%3Apredict"]
)
def test_requests_go_to_the_transformer(harness: GatewayHarness, path: str) -> None:
    with component(says_so) as transformer:
        name = declare(harness, transformer.address).name.name
        response = harness.client.post(harness.gateway.url + path.format(name), content=b"{}")
        assert response.json() == {"by": path.format(name).replace("%3A", ":")}
        prefixed = harness.client.post(
            f"{harness.gateway.url}/serving/default/{name}{path.format(name)}", content=b"{}"
        )
        assert prefixed.json() == response.json()
    assert harness.metric("pilotlight_gateway_component_seconds_count", component="transformer")


def test_an_openai_request_goes_to_the_transformer(harness: GatewayHarness) -> None:
    with component(says_so) as transformer:
        spec = declare(harness, transformer.address)
        body = {"model": spec.name.name, "prompt": "x"}
        response = harness.client.post(f"{harness.gateway.url}/openai/v1/completions", json=body)
    assert response.json() == {"by": "/openai/v1/completions"}


def test_only_explanations_go_to_the_explainer(harness: GatewayHarness) -> None:
    with component(says_so) as explainer:
        spec = declare(harness, explainer=explainer.address)
        harness.start_pods("pod-a", warm=spec)
        name = spec.name.name
        assert explain(harness, spec).json() == {"by": f"/v1/models/{name}:explain"}
        assert harness.predict(spec, b'{"x": 1}').json() == {"x": 1}


def test_a_model_without_explainer_says_so(harness: GatewayHarness) -> None:
    response = explain(harness, harness.declare())
    assert reason(response) == (501, "not-implemented")
    assert "has no explainer" in response.json()["error"]


def test_an_unknown_model_has_no_explanations(harness: GatewayHarness) -> None:
    url = f"{harness.gateway.url}/v1/models/absent:explain"
    assert reason(harness.client.post(url, content=b"{}")) == (404, "model-not-found")


def test_the_predictors_host_names_the_model_itself(harness: GatewayHarness) -> None:
    with component(says_so) as transformer:
        spec = declare(harness, transformer.address)
        harness.start_pods("pod-a", warm=spec)
        name = spec.name.name
        for host in (f"{name}-predictor.default", f"{name}-predictor.default.svc.cluster.local:80"):
            response = harness.client.post(
                f"{harness.gateway.url}/v1/models/{name}:predict",
                content=b'{"x": 1}',
                headers={"host": host},
            )
            assert response.json() == {"x": 1}
        assert not transformer.seen


def test_a_transformer_declared_later_gets_the_next_requests(harness: GatewayHarness) -> None:
    with component(says_so) as transformer:
        spec = harness.declare()
        harness.start_pods("pod-a", warm=spec)
        assert harness.predict(spec, b"{}").json() == {}
        changed = replace(spec, transformer=transformer.address)
        harness.run(lambda registry: registry.put_models([changed]))
        harness.wait_synced()
        assert "by" in harness.predict(spec, b"{}").json()


def test_headers_are_those_of_kserves_router(harness: GatewayHarness) -> None:
    with component(says_so) as transformer:
        spec = declare(harness, transformer.address)
        response = harness.predict(
            spec,
            x_request_id="one",
            x_b3_traceid="two",
            x_mine="kept",
            authorization="Bearer mine",
            kserve_isvc_name="another",
            x_pilotlight_deadline_ms="5000",
        )
        [seen] = transformer.seen
    assert response.headers["x-request-id"] == seen["x-request-id"] == "one"
    assert (seen["x-mine"], seen["authorization"]) == ("kept", "Bearer mine")
    assert seen["x-b3-traceid"] == "two"
    assert (seen["kserve-isvc-name"], seen["kserve-isvc-namespace"]) == (spec.name.name, "default")
    assert seen["host"] == transformer.address
    assert 0 < int(seen["x-pilotlight-deadline-ms"]) <= 5000
    assert "x-pilotlight-secret" not in seen


def test_a_large_body_reaches_the_transformer_unchanged(harness: GatewayHarness) -> None:
    body = bytes(range(256)) * 12_000
    with component(says_so) as transformer:
        assert harness.predict(declare(harness, transformer.address), body).status_code == 200
        assert transformer.bodies == [body]


def test_a_transformer_that_is_not_there(harness: GatewayHarness) -> None:
    address = f"127.0.0.1:{servers.free_port()}"
    response = harness.predict(declare(harness, address))
    assert reason(response) == (503, "component-unreachable")
    assert f"transformer at {address}" in response.json()["error"]
    assert response.headers["retry-after"] == "1"


def test_a_name_that_does_not_resolve(harness: GatewayHarness) -> None:
    response = harness.predict(declare(harness, "absent-transformer.invalid:80"))
    assert reason(response) == (503, "component-unreachable")


def test_a_transformer_that_dies_during_the_request(harness: GatewayHarness) -> None:
    with component(closes) as transformer:
        response = harness.predict(declare(harness, transformer.address))
        assert len(transformer.seen) == 1
    assert reason(response) == (502, "component-lost")


def test_a_response_that_breaks_off_is_not_completed(harness: GatewayHarness) -> None:
    with component(breaks_off) as transformer:
        spec = declare(harness, transformer.address)
        with pytest.raises(httpx.RemoteProtocolError):
            harness.predict(spec)


def test_a_slow_transformer_is_left_at_the_deadline(harness: GatewayHarness) -> None:
    with component(hangs) as transformer:
        response = harness.predict(
            declare(harness, transformer.address), x_pilotlight_deadline_ms="300"
        )
        assert reason(response) == (504, "deadline")
        assert "before the transformer responded" in response.json()["error"]
        assert transformer.gone.wait(60)


def test_the_models_own_deadline_holds_for_its_transformer(harness: GatewayHarness) -> None:
    with component(hangs) as transformer:
        response = harness.predict(declare(harness, transformer.address, deadline_s=0.3))
    assert reason(response) == (504, "deadline")


def test_a_client_that_leaves_ends_the_request_at_the_transformer(harness: GatewayHarness) -> None:
    with component(hangs) as transformer:
        spec = declare(harness, transformer.address)
        with raw_request(harness, spec):
            servers.wait_until(lambda: bool(transformer.seen), what="the request is there")
        assert transformer.gone.wait(60)


def test_a_transformer_that_asks_itself_is_stopped(harness: GatewayHarness) -> None:
    def ask_again(started: Component, handler: Handler, body: bytes) -> None:
        headers = {"x-request-id": handler.headers["x-request-id"]}  # as KServe's pass it on
        url = harness.gateway.url + handler.path
        response = httpx.post(url, content=body, headers=headers, trust_env=False, timeout=60)
        handler.answer(response.status_code, response.content, JSON)

    with component(ask_again) as transformer:
        response = harness.predict(declare(harness, transformer.address))
        assert len(transformer.seen) == MAX_OF_ID
    assert response.status_code == 508
    assert "--predictor_host" in response.json()["error"]


def test_calls_of_one_id_are_no_loop(harness: GatewayHarness) -> None:
    all_there = threading.Barrier(6)

    def awaits_the_others(started: Component, handler: Handler, body: bytes) -> None:
        all_there.wait(timeout=20)
        handler.answer(200, b"{}", JSON)

    with component(awaits_the_others) as transformer:
        spec = declare(harness, transformer.address)
        asked = [harness.predict_in_background(spec, x_request_id="mine") for _ in range(6)]
        assert [response.result().status_code for response in asked] == [200] * 6


def test_grpc_is_refused_by_name(
    redis: servers.RedisServer, client: httpx.Client, tmp_path: Path, pool: str
) -> None:
    port = servers.free_port()
    with (
        component(says_so) as transformer,
        servers.gateway(tmp_path, redis_url=redis.url, pool=pool, grpc_port=port) as gateway,
    ):
        spec = declare(GatewayHarness(redis.url, pool, gateway, client), transformer.address)
        request = calls.rows(spec.name.name, 1.0).SerializeToString()
        error = calls.refused(port, "ModelInfer", request)
        assert error.code().name == "UNIMPLEMENTED"
        assert "transformer" in error.details()
        assert not transformer.seen


@pytest.fixture(scope="module")
def guarded(
    redis: servers.RedisServer, client: httpx.Client, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[GatewayHarness]:
    """A gateway that needs keys, with the pods' secret."""
    folder, keys = tmp_path_factory.mktemp("guarded"), tmp_path_factory.mktemp("keys")
    (keys / "red").write_text(KEY)
    (keys / "blue").write_text(OTHER_KEY)
    (folder / "secret").write_text(SECRET)
    with servers.gateway(
        folder,
        redis_url=redis.url,
        pool="components",
        api_keys=keys,
        pod_secret_file=folder / "secret",
    ) as gateway:
        yield GatewayHarness(redis.url, "components", gateway, client)


@dataclass(frozen=True)
class Guarded:
    """Two models of tenant red with a transformer, and what the transformer was given."""

    harness: GatewayHarness
    spec: ModelSpec
    other: ModelSpec
    given: dict[str, str]

    def ask(
        self, spec: ModelSpec, authorization: str, host: str | None = None
    ) -> tuple[int, str | None]:
        name = spec.name
        headers = {"authorization": authorization} if authorization else {}
        headers["host"] = host or f"{name.name}-predictor.{name.namespace}"
        response = self.harness.client.post(
            f"{self.harness.gateway.url}/v1/models/{name.name}:predict",
            content=b'{"x": 1}',
            headers=headers,
        )
        return response.status_code, response.headers.get("x-pilotlight-pod")


@pytest.fixture
def access(guarded: GatewayHarness) -> Iterator[Guarded]:
    with component(says_so) as transformer:
        specs = [
            replace(guarded.declare(namespace="red"), transformer=transformer.address)
            for _ in range(2)
        ]
        guarded.run(lambda registry: registry.put_models(specs))
        with guarded.running_pods("pod-a", slots=4) as pods:
            for spec in specs:
                pods.control("pod-a", "warm", spec.key)
            guarded.wait_synced()
            response = guarded.predict(specs[0], authorization=f"Bearer {KEY}", x_api_key=KEY)
            assert response.status_code == 200, response.text
            [given] = transformer.seen
            yield Guarded(guarded, specs[0], specs[1], given)


def test_the_transformer_never_sees_a_key(access: Guarded) -> None:
    assert KEY not in json.dumps(access.given)
    assert SECRET not in json.dumps(access.given)


def test_what_it_gets_instead_is_for_its_model_alone(access: Guarded) -> None:
    given = access.given["authorization"]
    assert access.ask(access.spec, given) == (200, "pod-a")
    assert access.ask(access.other, given)[0] == 401
    changed = given.replace(access.spec.name.name, access.other.name.name)
    assert access.ask(access.other, changed)[0] == 401
    later = given.replace(given.split(".")[-2], str(int(given.split(".")[-2]) + 1))
    assert access.ask(access.spec, later)[0] == 401


def test_it_goes_to_the_model_by_any_name(access: Guarded) -> None:
    """A transformer that was given the gateway's usual address makes no loop."""
    host = f"{access.spec.name.name}.red.example.com"
    assert access.ask(access.spec, access.given["authorization"], host) == (200, "pod-a")


@pytest.mark.parametrize("authorization", ["", "Bearer wrong", f"Bearer {OTHER_KEY}"])
def test_the_predictors_host_is_no_way_around_keys(access: Guarded, authorization: str) -> None:
    assert access.ask(access.spec, authorization)[0] == 401


def test_the_tenants_own_key_is_accepted_there(access: Guarded) -> None:
    assert access.ask(access.spec, f"Bearer {KEY}") == (200, "pod-a")
