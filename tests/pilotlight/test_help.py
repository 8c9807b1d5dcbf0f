"""What `--help`, the shell's completion and hints show: brackets, titles, names that exist."""

import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from pilotlight.cli import create_app
from registry.domain.model import ModelName, ModelSpec
from runtime.errors import ModelTooLarge
from runtime.settings import RuntimeSettings
from tests import servers
from tests.pilotlight.conftest import Cli
from tests.registry.redis.clients import act
from tests.runtime.tiers.test_disk_budget import SIZE, fetch, make_cache, make_model

_QUALIFIED = re.compile(
    r"\b(network|routing|loading|placement|selection|scheduling)\b", re.IGNORECASE
)


def _verbs(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """All commands and groups, the whole command line first."""
    yield path, command
    for name, each in getattr(command, "commands", {}).items():
        yield from _verbs(each, (*path, name))


def _texts(command: Any) -> list[str]:
    return [text for each in (command, *command.params) if (text := getattr(each, "help", ""))]


VERBS = dict(_verbs(get_command(create_app())))


def test_brackets_in_the_summary_of_a_command_stay(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    app = create_app(["make-model"])
    command: Any = get_command(app)
    command.commands["make-model"].help = "Make it [quickly], with pilotlight[demo]."
    with pytest.raises(SystemExit):
        command(["--help"])
    assert "[quickly], with pilotlight[demo]" in cli.capsys.readouterr().out


@pytest.mark.parametrize("columns", [80, 160])
def test_the_options_of_up_are_listed_by_title(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    shown = cli("up", "--help").out
    titles = ("Platform", "Pods", "Storage", "Autoscaler", "Tenants", "GPU")
    found = re.findall(rf"^(?:╭─ )?({'|'.join(titles)})(?::$| ─)", shown, re.MULTILINE)
    assert tuple(found) == titles
    assert shown.index("pilotlight up -d --pods 4") < shown.index("--port")


def test_the_examples_of_up_stand_on_lines_of_their_own(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = [line.strip() for line in cli("up", "--help").out.splitlines()]
    assert [line.split("#")[0].strip() for line in lines if line.startswith("pilotlight up")] == [
        "pilotlight up -d --pods 4 -f models.yaml",
        "pilotlight up --min-pods 0 --pod-memory 8Gi",
    ]
    assert "\\b" not in "".join(lines)


def test_policies_are_named_by_what_they_are_of() -> None:
    unqualified = {
        (" ".join(path), text)
        for path, command in VERBS.items()
        for text in _texts(command)
        if re.search(r"polic(y|ies)|planner", text, re.IGNORECASE) and not _QUALIFIED.search(text)
    }
    assert unqualified == set()


def test_a_disk_too_small_names_options_of_the_pod_and_of_up(tmp_path: Path) -> None:
    spec = make_model(tmp_path / "source" / "a")
    cache = make_cache(tmp_path / "cache", budget_bytes=SIZE // 2)
    with pytest.raises(ModelTooLarge) as raised:
        fetch(cache, spec)
    of_pods, of_up = re.findall(r"--[a-z-]+", str(raised.value))
    command: Any = get_command(create_app())
    up = command.commands["up"]
    assert of_up in {name for each in up.params for name in each.opts}
    of_settings = {f"--{each.name.replace('_', '-')}" for each in fields(RuntimeSettings)}
    assert of_pods in of_settings


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
