"""`key new`, the keys that `up` gives to its gateway, and verbs that speak to one with keys."""

import json
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.main import get_command

from gateway.authentication import TenantKeys
from pilotlight.cli import create_app
from pilotlight.commands.up_flags import UP_FLAGS, settings_of
from pilotlight.platform.settings import PlatformSettings, gateway_spec
from pilotlight.state_dir import StateDir
from tests import servers
from tests.gateway.conftest import client
from tests.gateway.gateway_harness import GatewayHarness, running_harness
from tests.pilotlight.conftest import Cli

__all__ = ["client"]

RED, OPERATOR = "red-key-red-key-red", "operator-key-operator"
HINT = "give --key or set PILOTLIGHT_KEY"


@pytest.fixture(scope="module")
def guarded(
    client: httpx.Client, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[GatewayHarness]:
    keys = tmp_path_factory.mktemp("keys")
    (keys / "red").write_text(RED)
    (keys / "_operator").write_text(OPERATOR)
    folder = tmp_path_factory.mktemp("guarded")
    with (
        servers.redis_server(tmp_path_factory.mktemp("redis")) as redis,
        running_harness(folder, redis.url, "keys", client, api_keys=keys) as harness,
    ):
        harness.start_pods("pod-a", slots=4, warm=harness.declare("wise", namespace="red"))
        yield harness


VERBS = [
    pytest.param(("predict", "red/wise", "text"), id="predict"),
    pytest.param(("explain", "none", "-n", "red"), id="explain"),
    pytest.param(("workflow", "run", "red/none"), id="workflow"),
    pytest.param(("get", "workflows", "-n", "red"), id="get workflows"),
]


@pytest.mark.parametrize("arguments", VERBS)
@pytest.mark.parametrize("key", ["", "blue-key-blue-key"])
def test_without_a_valid_key_the_error_says_how_to_give_one(
    cli: Cli, guarded: GatewayHarness, arguments: tuple[str, ...], key: str
) -> None:
    ran = cli(*arguments, "--gateway", guarded.gateway.url, "--key", key)
    assert ran.status == 1
    assert ran.err.rstrip().endswith(HINT)
    named = "the one given does not open it: name its namespace (-n), or "
    assert (named in ran.err) == bool(key)


def test_the_key_of_the_environment_opens_a_model(
    cli: Cli, guarded: GatewayHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PILOTLIGHT_KEY", RED)
    ran = cli("predict", "red/wise", "text", "--gateway", guarded.gateway.url)
    assert ran.status == 0, ran.err


@pytest.mark.slow
def test_load_run_names_the_namespace_of_its_models(
    cli: Cli, guarded: GatewayHarness, tmp_path: Path
) -> None:
    trace = "poisson:rate=20,duration=1s,names=wise"
    flags = ("--url", guarded.gateway.url, "--key", RED, "--json", "-o", str(tmp_path / "run"))
    ran = cli("load", "run", "--trace", trace, "-n", "red", *flags)
    assert ran.status == 0, ran.err
    assert ran.document["ok"] == ran.document["requests"] > 0
    assert cli("load", "run", "--trace", trace, "--overwrite", *flags).status == 1


@pytest.mark.parametrize("key", [RED, OPERATOR])
def test_its_tenant_and_an_operator_explain_a_request(
    cli: Cli, guarded: GatewayHarness, key: str
) -> None:
    gateway = ("--gateway", guarded.gateway.url)
    sent = cli("predict", "red/wise", "text", "--json", "--key", RED, *gateway)
    request_id = sent.document["headers"]["x-request-id"]
    ran = cli("explain", request_id, "--key", key, *gateway)
    assert ran.status == 0, ran.err
    assert "red/wise" in ran.out


@pytest.mark.parametrize("key", ["two\nlines", "schlüssel"])
def test_a_key_that_no_header_can_carry_is_refused(cli: Cli, key: str) -> None:
    ran = cli("predict", "embed", "text", "--gateway", "127.0.0.1:1", "--key", key)
    assert ran.status == 2
    assert "--key" in ran.err


def _leaves(command: Any, path: str) -> Iterator[tuple[str, set[str]]]:
    """Every verb, with the names of its options."""
    commands = getattr(command, "commands", None)
    if commands is None:
        yield path, {name for each in command.params for name in each.opts}
        return
    for name, each in commands.items():
        yield from _leaves(each, f"{path} {name}")


def test_every_verb_that_can_name_a_gateway_takes_a_key() -> None:
    verbs = dict(_leaves(get_command(create_app()), "pilotlight"))
    speaking = {verb for verb, options in verbs.items() if {"--gateway", "--url"} & options}
    assert len(speaking) > 8
    assert [verb for verb in sorted(speaking) if "--key" not in verbs[verb]] == []


def test_a_new_key_is_printed_and_opens_its_namespace(cli: Cli, tmp_path: Path) -> None:
    folder = tmp_path / "secret" / "keys"
    made = [cli("key", "new", "team", "--api-keys", str(folder)) for _ in range(2)]
    keys = [each.out.strip() for each in made]
    assert len(set(keys)) == 2
    known = TenantKeys(folder)
    for key in keys:
        assert known.namespaces_of(key.encode()) == ["team"]
    assert stat.S_IMODE((folder / "team").stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert f"up --api-keys {folder}" in made[0].err
    assert [each.name for each in folder.iterdir()] == ["team"]


def test_keys_are_in_the_platforms_folder_by_default(cli: Cli) -> None:
    found = json.loads(cli("key", "new", "_operator", "--json").out)
    assert found["folder"] == str(cli.home / "keys")
    assert TenantKeys(cli.home / "keys").contains("_operator", found["key"].encode())


@pytest.mark.parametrize("namespace", ["Team", "a/b", "..", "", "_other", "a" * 64])
def test_other_names_are_refused(cli: Cli, namespace: str) -> None:
    result = cli("key", "new", namespace)
    assert result.status == 2
    assert "a namespace is" in result.err
    assert not (cli.home / "keys").exists()


def test_the_gateway_of_a_platform_gets_the_folders(tmp_path: Path) -> None:
    access = {"api_keys": "/keys", "ingress_domain": "example.com", "token_issuers": ""}
    settings = PlatformSettings(StateDir(tmp_path), tmp_path, gateway=access)
    command = gateway_spec(
        settings, {}, redis_url="redis://r", host="127.0.0.1", port=0, workflows_url="http://w"
    ).words
    assert command[command.index("--api-keys") + 1] == "/keys"
    assert command[command.index("--ingress-domain") + 1] == "example.com"
    assert "--token-issuers" not in command


def test_folders_that_the_gateway_cannot_read_are_refused(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "short").mkdir()
    (tmp_path / "short" / "team").write_text("short")
    missing, short = str(tmp_path / "missing"), str(tmp_path / "short")
    given = {flag.name: flag.default for flag in UP_FLAGS}
    given |= {"api_keys": Path(missing), "token_issuers": Path(short), "ingress_domain": "exa mple"}
    problems: list[str] = []
    settings_of("gateway", given, problems)
    problems.sort()
    assert len(problems) == 3
    assert "--api-keys must be a readable folder" in problems[0]
    assert "--ingress-domain must be a domain" in problems[1]
    result = cli("up", "--api-keys", short)
    assert result.status == 2
    assert "a key must have 16 bytes or more" in result.err
