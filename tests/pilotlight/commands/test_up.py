"""What `up` prints once the platform is ready."""

import json

import pytest

from pilotlight.commands.up import note_next, print_ready
from pilotlight.output import Output
from pilotlight.state_dir import PlatformState

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
