"""Requests, models and killed processes of a whole platform, as a user runs it."""

import asyncio
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import yaml

from load.report.run_file import read_run
from load.report.summary import summarise
from registry.domain.pod import default_slots
from tests import servers
from tests.pilotlight.conftest import SAMPLES
from tests.pilotlight.platform.running import RunningPlatform, command_of, pids_of, start_platform

pytestmark = pytest.mark.slow

POD_COUNT = 8
SENTENCE = "quick brown fox jumps over"


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory, objects: Path) -> Iterator[RunningPlatform]:
    home = tmp_path_factory.mktemp("home")
    running = start_platform(home, "--pods", str(POD_COUNT), "--objects", str(objects))
    try:
        assert running.cli("apply", "-f", str(SAMPLES)).status == 0
        with running.client() as client:
            servers.wait_until(lambda: client.get("/v2/models/translate").is_success)
        yield running
    finally:
        running.cli("down")


def test_up_prints_the_gateways_address_and_the_pods(platform: RunningPlatform) -> None:
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+", platform.url)
    assert len(platform.facts["pods"]) == POD_COUNT
    assert {pod["slots"] for pod in platform.get("pods")} == {default_slots()}


def test_ps_shows_what_each_process_is(platform: RunningPlatform) -> None:
    titles = {command_of(pid).strip() for pid in pids_of(platform)}
    parts = ("supervisor", "gateway", "scheduler", "forkserver", "pod-0", "pod-0 sandbox")
    assert titles >= {f"pilotlight: {part}" for part in parts}


def test_v1_and_v2_responses_carry_the_routing_headers(platform: RunningPlatform) -> None:
    v2 = {"inputs": [{"name": "text", "shape": [1], "datatype": "BYTES", "data": [SENTENCE]}]}
    with platform.client() as client:
        answers = [
            client.post("/v1/models/embed:predict", json={"instances": [SENTENCE]}),
            client.post("/v2/models/embed/infer", json=v2),
            client.post(
                "/serving/default/embed/v1/models/embed:predict", json={"instances": ["x"]}
            ),
            client.post(
                "/v2/models/embed/infer", json=v2, headers={"host": "embed.default.example.com"}
            ),
        ]
    for answer in answers:
        assert answer.status_code == 200, answer.text
        for header in ("pod", "policy", "reason", "start"):
            assert answer.headers[f"x-pilotlight-{header}"]
        assert answer.headers["x-request-id"]
        assert "infer;dur=" in answer.headers["server-timing"]
    assert len(answers[0].json()["predictions"][0]) == 384
    assert answers[1].json()["model_name"] == "embed"
    assert answers[1].json()["outputs"][0]["shape"] == [1, 384]


def test_models_and_pods_show_the_same_tiers(platform: RunningPlatform) -> None:
    with platform.client() as client:
        client.post("/v1/models/embed:predict", json={"instances": ["x"]}).raise_for_status()
    models, pods = platform.get("models"), platform.get("pods")
    by_model = {
        (each["namespace"] + "/" + each["name"], pod): tier
        for each in models
        for pod, tier in each["tiers"].items()
    }
    by_pod = {(name, pod["name"]): tier for pod in pods for name, tier in pod["models"].items()}
    assert by_model == by_pod
    assert "device" in by_model.values()
    assert all(each["ready"] for each in models)


def test_ten_sequential_requests_start_cold_once_under_colocation(
    platform: RunningPlatform, tmp_path: Path
) -> None:
    platform.apply(tmp_path, "ten", policy="colocation", uri="s3://models/all-minilm-l6-v2")
    with platform.client() as client:
        starts = [
            client.post("/v1/models/ten:predict", json={"instances": [SENTENCE]})
            .raise_for_status()
            .headers["x-pilotlight-start"]
            for _ in range(10)
        ]
    assert starts == ["remote"] + ["warm"] * 9


def test_fifty_concurrent_first_requests_load_once_under_queueing(
    platform: RunningPlatform, tmp_path: Path
) -> None:
    platform.apply(
        tmp_path, "fifty", policy="colocation-queueing", uri="s3://models/all-minilm-l6-v2"
    )
    loads_before = platform.loads_total()

    async def ask() -> list[httpx.Response]:
        async with httpx.AsyncClient(base_url=platform.url, trust_env=False, timeout=60) as client:
            requests = [
                client.post("/v1/models/fifty:predict", json={"instances": [f"text {index}"]})
                for index in range(50)
            ]
            return await asyncio.gather(*requests)

    answers = asyncio.run(ask())
    assert [answer.status_code for answer in answers] == [200] * 50
    servers.wait_until(lambda: platform.loads_total() > loads_before, what="load counted")
    assert platform.loads_total() == loads_before + 1


def test_explains_the_routing_of_a_request(platform: RunningPlatform) -> None:
    asked = platform.cli("predict", "embed", "a text", "--json")
    assert asked.status == 0
    headers = asked.document["headers"]
    explained = platform.cli("explain", headers["x-request-id"], "--json").document
    assert explained["request_id"] == headers["x-request-id"]
    assert explained["model"] == "default/embed"
    assert platform.cli("explain", "no-such-request").status == 1


def test_predicts_in_both_protocols_and_by_policy(platform: RunningPlatform) -> None:
    for more in (["--v1"], ["--v2"], ["--policy", "random"]):
        assert platform.cli("predict", "default/embed", "a text", *more).status == 0
    refused = platform.cli("predict", "absent", "a text")
    assert refused.status == 1
    assert "404" in refused.err


def test_a_run_is_simulated_beside_itself(platform: RunningPlatform, tmp_path: Path) -> None:
    platform.cli("predict", "embed", "warm")
    output = tmp_path / "run.parquet"
    trace = "poisson:rate=2,duration=2s,names=embed"
    flags = ("--trace", trace, "-o", str(output), "--policy", "colocation")
    ran = platform.cli("load", "run", *flags)
    assert ran.status == 0, ran.err
    found = read_run(output, "run")
    assert re.fullmatch(r"[1-9] of \d+ models warm", found.metadata["start_state"])
    assert summarise(found)["cold_starts"] == 0
    again = platform.cli("simulate", "--like", str(output), "--json")
    assert again.status == 0, again.err
    assert again.document["live"]["requests"] == again.document["runs"][0]["requests"]
    assert again.document["runs"][0]["policy"] == "colocation"
    cluster = yaml.safe_load(output.with_name("run.cluster.yaml").read_text())
    assert {each["machine"] for each in cluster["nodes"]} == {"local"}
    assert {each["cores"] for each in cluster["nodes"]} == {len(os.sched_getaffinity(0))}


def test_the_requests_of_the_gateway_are_a_trace_for_simulations(platform: RunningPlatform) -> None:
    platform.cli("predict", "embed", "a request")
    ran = platform.cli(
        "simulate", "--cluster", "live", "--trace", "live|rate=2", "--policy", "auto", "--json"
    )
    assert ran.status == 0, ran.err
    assert ran.document["runs"][0]["requests"] >= 2


def test_a_wrong_storage_uri_is_reported_and_affects_no_other_model(
    platform: RunningPlatform, tmp_path: Path
) -> None:
    platform.apply(tmp_path, "nowhere", policy="auto", uri="s3://models/nowhere")
    failed = platform.cli("predict", "nowhere", "a text")
    assert failed.status == 1
    assert "503" in failed.err
    [shown] = platform.cli("get", "models", "nowhere", "--json").document
    assert shown["ready"] is False
    assert "s3://models/nowhere" in shown["failure"]["message"]
    assert platform.cli("predict", "embed", "a text").status == 0
    assert platform.cli("delete", "nowhere").status == 0


def test_a_killed_pod_is_restarted_and_requests_succeed(platform: RunningPlatform) -> None:
    before = {pod["name"]: pod["pid"] for pod in platform.get("pods")}
    with platform.client() as client:
        answer = client.post("/v1/models/embed:predict", json={"instances": ["x"]})
        victim = answer.raise_for_status().headers["x-pilotlight-pod"]
        os.kill(before[victim], signal.SIGKILL)
        client.post("/v1/models/embed:predict", json={"instances": ["x"]}).raise_for_status()

    def is_registering() -> bool:
        after = {pod["name"]: pod["pid"] for pod in platform.get("pods")}
        return after.keys() == before.keys() and after[victim] != before[victim]

    servers.wait_until(is_registering, what=f"{victim} back")


def test_a_killed_gateway_is_restarted_at_its_address(platform: RunningPlatform) -> None:
    gateways = [pid for pid in pids_of(platform) if "pilotlight: gateway" in command_of(pid)]
    assert gateways
    os.kill(gateways[0], signal.SIGKILL)
    servers.wait_until(lambda: not servers.is_alive(gateways[0]))
    with platform.client() as client:
        servers.wait_until(lambda: client.get("/readyz").status_code == 200, what="gateway back")
        client.post("/v1/models/embed:predict", json={"instances": ["x"]}).raise_for_status()


def test_a_killed_registry_is_restarted_with_its_models(platform: RunningPlatform) -> None:
    models = [each["name"] for each in platform.get("models")]
    with platform.client() as client:
        client.post("/v1/models/embed:predict", json={"instances": ["x"]}).raise_for_status()
        [redis] = [pid for pid in pids_of(platform) if "redis-server" in command_of(pid)]
        os.kill(redis, signal.SIGKILL)
        answer = client.post("/v1/models/embed:predict", json={"instances": ["x"]})
        assert answer.headers["x-pilotlight-start"] == "warm"

    def is_healed() -> bool:
        pods = platform.cli("get", "pods", "--json")
        return pods.status == 0 and len(pods.document) == POD_COUNT

    servers.wait_until(is_healed, what="pods registered again")
    assert [each["name"] for each in platform.get("models")] == models


def test_a_killed_forkserver_is_restarted_with_all_pods(platform: RunningPlatform) -> None:
    before = {pod["name"]: pod["pid"] for pod in platform.get("pods")}
    stat = Path(f"/proc/{before['pod-0']}/stat").read_text()
    forkserver = int(stat.rpartition(")")[2].split()[1])
    assert "pilotlight: forkserver" in command_of(forkserver)
    os.kill(forkserver, signal.SIGKILL)
    servers.wait_until(lambda: not any(servers.is_alive(pid) for pid in before.values()))

    def is_registering() -> bool:
        after = {pod["name"]: pod["pid"] for pod in platform.get("pods")}
        return after.keys() == before.keys() and not after.items() & before.items()

    servers.wait_until(is_registering, what="pods back")
    assert platform.cli("predict", "embed", "a text").status == 0
