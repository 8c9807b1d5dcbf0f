"""What the shell offers, and how `--help` groups the commands."""

from __future__ import annotations

from typing import TYPE_CHECKING

from registry.domain.model import ModelName, ModelSpec
from tests.registry.redis.clients import act

if TYPE_CHECKING:
    import pytest

    from tests import servers
    from tests.pilotlight.conftest import Cli


def offered(cli: Cli, monkeypatch: pytest.MonkeyPatch, line: str) -> list[str]:
    monkeypatch.setenv("_PILOTLIGHT_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(len(line.split(" ")) - 1))
    return cli().out.split()


def test_offers_the_models_of_the_registry(
    cli: Cli, redis: servers.RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [ModelName("default", "embed"), ModelName("default", "sum"), ModelName("far", "echo")]
    specs = [ModelSpec(name, f"file:///{name.name}") for name in names]
    act(redis.url, "default", lambda registry: registry.put_models(specs))
    given = f"pilotlight get models --redis-url {redis.url} "
    assert offered(cli, monkeypatch, given + "e") == ["embed"]
    assert offered(cli, monkeypatch, given + "") == ["embed", "far/echo", "sum"]
    assert offered(cli, monkeypatch, given + "-n far e") == ["echo"]


def test_offers_nothing_without_a_platform(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    assert offered(cli, monkeypatch, "pilotlight predict e") == []


def test_offers_policies(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    line = "pilotlight predict embed text --policy col"
    assert offered(cli, monkeypatch, line) == ["colocation", "colocation-queueing"]


def test_offers_experiments(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    assert offered(cli, monkeypatch, "pilotlight experiment liu-s") == ["liu-simple"]
    assert "regret" in offered(cli, monkeypatch, "pilotlight experiment ")


def test_help_begins_with_the_commands_of_a_first_hour(cli: Cli) -> None:
    text = cli("--help").out
    assert text.index("Serve models") < text.index(" up ") < text.index(" apply ")
    assert text.index(" get ") < text.index("See what happens") < text.index(" experiment ")
