"""Exit statuses and messages of the command line."""

import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from pilotlight.cli import create_app
from pilotlight.state_dir import PlatformState, StateDir
from tests.pilotlight.conftest import SAMPLES, Cli

_WITHOUT_EXTRAS = (
    "import sys; sys.modules.update(pyarrow=None, kubernetes=None, torch=None); "
    "from pilotlight.cli import main; raise SystemExit(main())"
)


def _home(cli: Cli) -> StateDir:
    return StateDir(cli.home)


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(("get", "models"), id="get"),
        pytest.param(("apply", "-f", str(SAMPLES)), id="apply"),
        pytest.param(("predict", "embed", "text"), id="predict"),
        pytest.param(("explain", "id"), id="explain"),
    ],
)
def test_without_a_platform_the_error_names_the_command_to_start_one(
    cli: Cli, arguments: tuple[str, ...]
) -> None:
    ran = cli(*arguments)
    assert ran.status == 1
    assert ran.out == ""
    assert f"no platform runs in {cli.home}" in ran.err
    assert "pilotlight up --detach" in ran.err


@pytest.mark.parametrize("verb", [("scale", "default", "--pods", "1"), ("controller",)])
def test_without_a_kubeconfig_the_verbs_of_a_cluster_name_the_variable(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, verb: tuple[str, ...]
) -> None:
    monkeypatch.setenv("KUBECONFIG", "/nonexistent")
    ran = cli(*verb)
    assert ran.status == 1
    assert "error: no cluster: " in ran.err
    assert "set KUBECONFIG" in ran.err


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        pytest.param(("up", "--pods", "none"), "--pods", id="pods"),
        pytest.param(("up", "--home", ""), "'--home'", id="no home"),
        pytest.param(("up", "--pod-memory", "lots"), "--pod-memory", id="memory"),
        pytest.param(("up", "--loading", ""), "--loading must be one of", id="no policy"),
        pytest.param(("up", "--placement", ""), "--placement must be one of", id="no planner"),
        pytest.param(("up", "--pod-memory", ""), "--pod-memory must be a size", id="no memory"),
        pytest.param(("up", "--redis-url", "http://x"), "must begin with redis://", id="up redis"),
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
def test_invalid_input_ends_with_status_2(
    cli: Cli, arguments: tuple[str, ...], expected: str
) -> None:
    with (cli_home := _home(cli)).lock():
        cli_home.write_state(PlatformState(pid=1, phase="ready", gateway="http://127.0.0.1:1"))
        ran = cli(*arguments)
    assert ran.status == 2
    assert expected in ran.err
    assert "Traceback" not in ran.err


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        pytest.param(
            ("--pods", "2", "--min-pods", "3"),
            "min-pods must be at most max-pods, was 3 with max-pods 2",
            id="bounds that cross",
        ),
        pytest.param(
            ("--loading", "magic"), "--loading must be one of predictive", id="no such policy"
        ),
        pytest.param(
            ("--engine-url", "http://127.0.0.1:8000", "--engine-repository", "m", "--pods", "2"),
            "--engine-url and --engine-repository serve one pod",
            id="one server for two pods",
        ),
        pytest.param(
            ("--engine-python", "no-python"),
            "there is no program 'no-python'",
            id="no Python with vLLM",
        ),
        pytest.param(
            ("--llama-server", "no-server"),
            "--llama-server must be llama.cpp's server",
            id="no server of llama.cpp",
        ),
        pytest.param(
            ("--engine-command", "mlserver start ."),
            "--engine-command must hold {port}",
            id="command without port",
        ),
    ],
)
def test_up_rejects_contradictory_flags(cli: Cli, flags: tuple[str, ...], text: str) -> None:
    ran = cli("up", *flags)
    assert ran.status == 2
    assert text in ran.err


def test_an_unreachable_registry_ends_with_status_1(cli: Cli) -> None:
    ran = cli("get", "pods", "--redis-url", "redis://127.0.0.1:1/0")
    assert ran.status == 1
    assert "no registry answers at redis://127.0.0.1:1/0" in ran.err


def test_an_unreachable_gateway_ends_with_status_1(cli: Cli) -> None:
    ran = cli("predict", "embed", "text", "--gateway", "127.0.0.1:1")
    assert ran.status == 1
    assert "no response from the gateway at http://127.0.0.1:1" in ran.err


@pytest.mark.parametrize("detach", [(), ("--detach",)])
def test_starting_twice_fails_with_pid_and_address(cli: Cli, detach: tuple[str, ...]) -> None:
    home = _home(cli)
    with home.lock():
        home.write_state(PlatformState(pid=4711, phase="ready", gateway="http://127.0.0.1:8080"))
        ran = cli("up", *detach, "--json")
    assert ran.status == 2
    assert "pid 4711, ready at http://127.0.0.1:8080" in ran.document["error"]


@pytest.mark.slow
def test_a_port_in_use_is_said_before_sample_models_are_made(cli: Cli) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ran = cli("up", "--port", str(taken.getsockname()[1]))
    assert ran.status == 1
    assert "in use by another program: choose another with --port" in ran.err
    assert "sample models" not in ran.err
    assert not (cli.home / "objects").exists()


def test_down_without_a_platform_succeeds(cli: Cli) -> None:
    ran = cli("down", "--json")
    assert ran.status == 0
    assert ran.document["stopped"] is False


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "package", "extra"),
    [
        (["simulate", "--cluster", "c.yaml", "--trace", "t.csv"], "pyarrow", "load"),
        (["experiment"], "pyarrow", "load"),
        (["load", "run", "--trace", "t.csv", "--url", "http://gateway"], "pyarrow", "load"),
        (["up"], "torch", "platform"),
        (["demo"], "torch", "all"),
        (["make-model", "tiny-bert", "made"], "torch", "platform"),
        (["controller", "--help"], "kubernetes", "kubernetes"),
        (["scale", "default", "--pods", "1"], "kubernetes", "kubernetes"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else None,
)
def test_a_missing_extra_is_named(arguments: list[str], package: str, extra: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", _WITHOUT_EXTRAS, *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 1
    assert ended.stdout == ""
    assert f"{package} is not installed; it comes with `pip install 'pilotlight[{extra}]'`" in (
        " ".join(ended.stderr.split())
    )


@pytest.mark.slow
def test_makes_a_model(cli: Cli, tmp_path: Path) -> None:
    ran = cli("make-model", "tiny-bert", str(tmp_path / "made"), "--json")
    assert ran.status == 0
    assert (tmp_path / "made" / "model.safetensors").is_file()
    assert ran.document["kind"] == "tiny-bert"


def test_an_unknown_kind_of_model_is_rejected(cli: Cli, tmp_path: Path) -> None:
    ran = cli("make-model", "tiny-llm", str(tmp_path / "made"))
    assert ran.status == 2
    assert "KIND must be one of bert-base, " in ran.err


def test_the_version_is_printed(cli: Cli) -> None:
    assert cli("--version").out.startswith("pilotlight 0.")


_STOPPED_AT_ITS_FIRST_IMPORT = """
import signal, sys
class Stop:
    def find_spec(self, name, *_):
        if name == "pilotlight.cli":
            signal.raise_signal(signal.SIGINT)
sys.meta_path.insert(0, Stop())
from pilotlight.__main__ import main
main()
"""


def test_ctrl_c_during_the_imports_leaves_no_traceback() -> None:
    command = [sys.executable, "-c", _STOPPED_AT_ITS_FIRST_IMPORT]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == -signal.SIGINT
    assert ended.stderr == ""


@pytest.mark.parametrize("columns", [80, 109, 110, 200])
@pytest.mark.parametrize(
    "command",
    [("up",), ("predict",), ("simulate",), ("load", "run"), ("get", "models")],
    ids=" ".join,
)
def test_help_cuts_no_name_of_an_option_or_a_variable(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...], columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    found: Any = get_command(create_app())
    for name in command:
        found = found.commands[name]
    shown = cli(*command, "--help").out
    words = shown.replace(",", " ").replace(";", " ").replace("]", " ").split()
    names = {name for each in found.params for name in each.opts if name.startswith("--")}
    variables = {each.envvar for each in found.params if getattr(each, "envvar", None)}
    assert names | variables <= set(words)
    assert max(map(len, shown.splitlines())) <= columns


def test_a_verb_imports_no_other_module_and_is_the_same_command() -> None:
    """Each verb, as it is listed, is found by the module that the command line imports for it."""
    whole: Any = get_command(create_app())
    for verb, command in whole.commands.items():
        alone: Any = get_command(create_app([verb, "--help"]))
        assert len(alone.commands) <= 3, "more than one module was imported"
        found = alone.commands[verb]
        assert [each.name for each in found.params] == [each.name for each in command.params]
        assert getattr(found, "commands", {}).keys() == getattr(command, "commands", {}).keys()
