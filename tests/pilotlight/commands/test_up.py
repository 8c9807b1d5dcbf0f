"""What `up` prints once the platform is ready."""

import json
from pathlib import Path
from typing import Any

import pytest

from pilotlight.commands.up import note_next, note_open, print_ready
from pilotlight.output import Output
from pilotlight.platform.settings import PlatformSettings
from pilotlight.state_dir import PlatformState, StateDir

READY = PlatformState(
    1, "ready", gateway="http://127.0.0.1:8080", redis_url="unix:///r", grpc="127.0.0.1:8081"
)


def test_the_addresses_of_both_protocols_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    print_ready(Output(), READY)
    lines = capsys.readouterr().out.splitlines()
    assert "gateway       http://127.0.0.1:8080" in lines
    assert "grpc          127.0.0.1:8081" in lines
    print_ready(Output(as_json=True), READY)
    assert json.loads(capsys.readouterr().out)["grpc"] == "127.0.0.1:8081"


@pytest.mark.parametrize(
    ("has_models", "expected"),
    [(False, "next: pilotlight apply -f manifests/samples"), (True, "next: pilotlight get models")],
)
def test_the_next_command_is_named(
    capsys: pytest.CaptureFixture[str], has_models: bool, expected: str
) -> None:
    note_next(Output(), has_models=has_models)
    assert capsys.readouterr().err.splitlines()[0] == expected


@pytest.mark.parametrize(
    ("host", "gateway", "is_warned"),
    [
        ("127.0.0.1", {}, False),
        ("localhost", {}, False),
        ("::1", {}, False),
        ("0.0.0.0", {}, True),
        ("192.0.2.1", {"ingress_domain": "example.com"}, True),
        ("0.0.0.0", {"api_keys": "/keys"}, False),
        ("0.0.0.0", {"token_issuers": "/issuers"}, False),
    ],
)
def test_a_host_beyond_loopback_without_keys_is_warned_about(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    host: str,
    gateway: dict[str, Any],
    is_warned: bool,
) -> None:
    note_open(
        PlatformSettings(StateDir.of(tmp_path), tmp_path, host=host, gateway=gateway), Output()
    )
    assert ("--api-keys" in capsys.readouterr().err) is is_warned
