"""The command line against a real registry, without pods."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import pytest

from pilotlight.state_dir import PlatformState, StateDir
from registry.domain.action_log import POOL, ActionRecord, WantedPods
from registry.domain.pod import PodInfo
from registry.redis.autoscaler_log import AutoscalerLog
from registry.redis.client import Registry
from tests import servers
from tests.pilotlight.conftest import SAMPLES
from tests.registry.redis.clients import act

if TYPE_CHECKING:
    from pathlib import Path

    from tests.pilotlight.conftest import Cli

GOOD = """
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata:
  name: {name}
spec:
  predictor:
    model:
      modelFormat: {{name: huggingface}}
      storageUri: s3://models/{folder}
"""
TWO_MISTAKES = """
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata:
  name: wrong
  annotations:
    pilotlight.io/target-ongoing-requests: "-3"
    pilotlight.io/polcy: auto
spec:
  predictor:
    model:
      modelFormat: {name: huggingface}
      storageUri: s3://models/t5-small
"""


def _write(folder: Path, **files: str) -> str:
    folder.mkdir(exist_ok=True)
    for name, text in files.items():
        (folder / f"{name}.yaml").write_text(text)
    return str(folder)


def _models(cli: Cli, redis: servers.RedisServer) -> list[str]:
    shown = cli("get", "models", "--json", "--redis-url", redis.url)
    return [each["name"] for each in shown.document]


def test_applies_like_kubectl(cli: Cli, redis: servers.RedisServer, tmp_path: Path) -> None:
    path = _write(
        tmp_path / "yaml",
        a=GOOD.format(name="a", folder="one"),
        b=GOOD.format(name="b", folder="one"),
    )
    first = cli("apply", "-f", path, "--redis-url", redis.url)
    assert first.status == 0
    assert first.out.splitlines() == [
        "inferenceservice.serving.kserve.io/a created",
        "inferenceservice.serving.kserve.io/b created",
    ]
    _write(tmp_path / "yaml", b=GOOD.format(name="b", folder="two"))
    second = cli("apply", "-f", path, "--redis-url", redis.url, "--json")
    assert [(each["name"], each["outcome"]) for each in second.document] == [
        ("a", "unchanged"),
        ("b", "configured"),
    ]


def test_tells_all_mistakes_together_and_applies_nothing(
    cli: Cli, redis: servers.RedisServer, tmp_path: Path
) -> None:
    path = _write(
        tmp_path / "yaml",
        a_good=GOOD.format(name="a", folder="one"),
        broken="kind: [",
        wrong_kind="apiVersion: v1\nkind: Pod\nmetadata: {name: x}\n",
        wrong=TWO_MISTAKES,
    )
    ran = cli("apply", "-f", path, "-f", "absent.yaml", "--redis-url", redis.url)
    assert ran.status == 2
    assert ran.out == ""
    for said in (
        "broken.yaml",
        "absent.yaml",
        "'Pod'",
        "wrong.yaml: InferenceService default/wrong",
        "'-3'",
        "pilotlight.io/polcy",
    ):
        assert said in ran.err
    assert _models(cli, redis) == []


def test_mistakes_are_machine_readable_too(
    cli: Cli, redis: servers.RedisServer, tmp_path: Path
) -> None:
    path = _write(tmp_path / "yaml", wrong=TWO_MISTAKES)
    ran = cli("apply", "-f", path, "--redis-url", redis.url, "--json")
    assert ran.status == 2
    assert len(ran.document["problems"]) == 2


def test_an_empty_folder_is_a_mistake(cli: Cli, redis: servers.RedisServer, tmp_path: Path) -> None:
    ran = cli("apply", "-f", _write(tmp_path / "yaml"), "--redis-url", redis.url)
    assert ran.status == 2
    assert "holds no .yaml" in ran.err


def test_the_samples_are_valid(cli: Cli, redis: servers.RedisServer) -> None:
    assert cli("apply", "-f", str(SAMPLES), "--redis-url", redis.url).status == 0
    assert _models(cli, redis) == ["classify-image", "embed", "translate"]


def test_shows_models_that_nobody_can_serve_as_not_ready(
    cli: Cli, redis: servers.RedisServer
) -> None:
    cli("apply", "-f", str(SAMPLES), "--redis-url", redis.url)
    [shown] = cli("get", "models", "translate", "--json", "--redis-url", redis.url).document
    assert (shown["namespace"], shown["name"]) == ("default", "translate")
    assert shown["policy"] == "colocation"
    assert shown["ready"] is False
    assert shown["tiers"] == {}
    assert shown["failure"] is None
    table = cli("get", "models", "--redis-url", redis.url)
    assert "default/translate" in table.out
    assert "no pod accepts requests" in table.out


def test_without_pods_a_model_is_ready_only_while_an_autoscaler_leads(
    cli: Cli, redis: servers.RedisServer
) -> None:
    async def lead(ttl_s: float) -> None:
        registry = await Registry.connect(redis.url)
        scaling = AutoscalerLog(registry)
        token = await scaling.acquire_lead("autoscaler", ttl_s=ttl_s)
        assert token is not None
        await scaling.set_wanted_pods(
            token, WantedPods(0), ActionRecord("scale", POOL, "idle", "none", 0.0)
        )
        await registry.close()

    def is_ready() -> bool:
        [shown] = cli("get", "models", "embed", "--json", "--redis-url", redis.url).document
        return bool(shown["ready"])

    cli("apply", "-f", str(SAMPLES), "--redis-url", redis.url)
    assert not is_ready()
    asyncio.run(lead(600))
    assert is_ready()
    asyncio.run(lead(0.1))
    servers.wait_until(lambda: not is_ready(), what="not ready: its wish is left, it leads no more")


def test_a_dry_run_says_what_would_be_done_and_why_and_does_nothing(
    cli: Cli, redis: servers.RedisServer, tmp_path: Path
) -> None:
    floor = 'annotations: {pilotlight.io/min-copies: "1"}'
    text = GOOD.format(name="kept", folder="x").replace("spec:", f"  {floor}\nspec:", 1)
    at = ("--redis-url", redis.url)
    cli("apply", "-f", _write(tmp_path / "y", kept=text), *at)
    info = PodInfo("pod-a", "127.0.0.1:1", node="n", memory_bytes=10**10)
    act(redis.url, "default", lambda registry: registry.register_pod(info, lease_ttl_s=600))

    plan = cli("autoscaler", "--dry-run", "--explain", "--json", *at).document
    [load] = plan["actions"]
    assert (load["verb"], load["model"], load["pod"], load["reason"]) == (
        "load", "default/kept", "pod-a", "floor",
    )  # fmt: skip
    [model] = plan["models"]
    assert (model["model"], model["warm"], model["waiting"], model["idle_s"]) == (
        "default/kept", 0, 0, None,
    )  # fmt: skip
    table = cli("autoscaler", "--dry-run", "--explain", *at).out
    assert "P(60 S)" in table
    assert "pod-a" in table

    assert cli("autoscaler", "--json", *at).document == []
    state = act(redis.url, "default", lambda registry: registry.cluster())
    assert not state.residency
    refused = cli("autoscaler", "--dry-run", "--loading", "clairvoyant", *at)
    assert refused.status == 2
    assert "must be one of" in refused.err


def test_deletes_by_name_namespace_and_file(
    cli: Cli, redis: servers.RedisServer, tmp_path: Path
) -> None:
    at = ("--redis-url", redis.url)
    cli("apply", "-f", str(SAMPLES), *at)
    cli("apply", "-f", _write(tmp_path / "y", a=GOOD.format(name="a", folder="x")), "-n", "t", *at)
    assert cli("delete", "t/a", *at).out.strip() == (
        'inferenceservice.serving.kserve.io "a" deleted'
    )
    assert cli("delete", "embed", "-n", "default", *at).status == 0
    again = cli("delete", "embed", *at)
    assert again.status == 1
    assert "not found: default/embed" in again.err
    assert cli("delete", "-f", str(SAMPLES / "translate.yaml"), *at).status == 0
    assert _models(cli, redis) == ["classify-image"]


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(("get", "models"), id="get"),
        pytest.param(("apply", "-f", str(SAMPLES)), id="apply"),
        pytest.param(("predict", "embed", "text"), id="predict"),
        pytest.param(("explain", "id"), id="explain"),
    ],
)
def test_says_what_to_do_where_nothing_runs(cli: Cli, arguments: tuple[str, ...]) -> None:
    ran = cli(*arguments)
    assert ran.status == 1
    assert ran.out == ""
    assert f"no platform runs in {cli.home}" in ran.err
    assert "pilotlight up --detach" in ran.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        pytest.param(("up", "--pods", "none"), "--pods", id="pods"),
        pytest.param(("up", "--pod-memory", "lots"), "--pod-memory", id="memory"),
        pytest.param(("up", "--pod-link-rate", "fast"), "--pod-link-rate", id="rate"),
        pytest.param(("up", "-f", "absent.yaml"), "absent.yaml", id="file"),
        pytest.param(("apply",), "--filename", id="apply nothing"),
        pytest.param(("delete",), "names or -f", id="delete nothing"),
        pytest.param(("get", "models", "--redis-url", "nonsense"), "nonsense", id="redis"),
        pytest.param(("predict", "embed"), "TEXT", id="predict nothing"),
        pytest.param(("predict", "e", "--data", "{"), "--data must be JSON", id="data"),
        pytest.param(("get", "models", "a/b/c"), "NAMESPACE/NAME", id="name"),
        pytest.param(("bogus",), "bogus", id="verb"),
    ],
)
def test_mistakes_in_what_was_asked_end_with_status_2(
    cli: Cli, arguments: tuple[str, ...], said: str
) -> None:
    with (cli_home := _home(cli)).lock():
        cli_home.write_state(PlatformState(pid=1, phase="ready", gateway="http://127.0.0.1:1"))
        ran = cli(*arguments)
    assert ran.status == 2
    assert said in ran.err
    assert "Traceback" not in ran.err


def test_an_absent_registry_is_no_mistake_of_the_user(cli: Cli) -> None:
    ran = cli("get", "pods", "--redis-url", "redis://127.0.0.1:1/0")
    assert ran.status == 1
    assert "no registry answers at redis://127.0.0.1:1/0" in ran.err


def test_an_absent_gateway_is_told(cli: Cli) -> None:
    ran = cli("predict", "embed", "text", "--gateway", "127.0.0.1:1")
    assert ran.status == 1
    assert "no response from the gateway at http://127.0.0.1:1" in ran.err


@pytest.mark.parametrize("detach", [(), ("--detach",)])
def test_starting_twice_says_what_is_running(cli: Cli, detach: tuple[str, ...]) -> None:
    home = _home(cli)
    with home.lock():
        home.write_state(PlatformState(pid=4711, phase="ready", gateway="http://127.0.0.1:8080"))
        ran = cli("up", *detach, "--json")
    assert ran.status == 2
    assert "pid 4711, ready at http://127.0.0.1:8080" in ran.document["error"]


def test_stopping_what_does_not_run_is_done_at_once(cli: Cli) -> None:
    ran = cli("down", "--json")
    assert ran.status == 0
    assert ran.document["stopped"] is False


@pytest.mark.slow
def test_makes_a_model(cli: Cli, tmp_path: Path) -> None:
    ran = cli("make-model", "tiny-bert", str(tmp_path / "made"), "--json")
    assert ran.status == 0
    assert (tmp_path / "made" / "model.safetensors").is_file()
    assert ran.document["kind"] == "tiny-bert"


def test_an_unknown_kind_of_model_is_a_mistake(cli: Cli, tmp_path: Path) -> None:
    ran = cli("make-model", "tiny-llm", str(tmp_path / "made"))
    assert ran.status == 2
    assert "KIND must be one of bert-base, " in ran.err


def test_json_is_all_there_is_on_standard_output(cli: Cli, redis: servers.RedisServer) -> None:
    ran = cli("get", "models", "--json", "--redis-url", redis.url)
    assert json.loads(ran.out) == []


def _home(cli: Cli) -> StateDir:
    return StateDir(cli.home)
