"""Settings: flag over environment over default, all mistakes together."""

import subprocess
import sys

import pytest

from common.settings_table import read_settings, settings_from_fields
from runtime.settings import RuntimeSettings


def read(arguments: list[str], environment: dict[str, str]) -> RuntimeSettings:
    return read_settings(RuntimeSettings, arguments, environment, prog="test")


def test_flag_beats_environment_beats_default() -> None:
    environment = {"PILOTLIGHT_POD_NAME": "a", "PILOTLIGHT_SLOTS": "3", "PILOTLIGHT_PORT": "1"}
    settings = read(["--slots", "4"], environment)
    assert (settings.name, settings.slots, settings.port, settings.threads) == ("a", 4, 1, 1)


def test_switch_needs_no_value() -> None:
    assert read(["--name", "a", "--allow-simulated-work"], {}).allow_simulated_work
    assert not read(["--name", "a"], {}).allow_simulated_work


def test_all_mistakes_are_told_together() -> None:
    with pytest.raises(ValueError, match="inference") as caught:
        settings_from_fields(
            RuntimeSettings, {"slots": -1, "inference_timeout": "-1", "nme": "x", "device": "tpu"}
        )
    message = str(caught.value)
    slots = "--slots must be a whole number of at least 0, was '-1'"
    device = "--device must be one of auto, cpu, cuda, was 'tpu'"
    for part in (slots, device, "--inference-timeout", "'nme'", "--name is"):
        assert part in message


def test_mistakes_on_the_command_line_end_with_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        read(["--name", "a", "--port", "x"], {})
    assert caught.value.code == 2
    assert "--port" in capsys.readouterr().err


def test_host_folder_is_one_per_pool_and_node() -> None:
    settings = read(["--name", "a", "--pool", "p", "--node", "n"], {})
    assert settings.host_path.parts[:3] == ("/", "dev", "shm")
    assert settings.host_path.name == "p~n"
    given = read(["--name", "a"], {"PILOTLIGHT_HOST_DIR": "/mnt/memory"})
    assert str(given.host_path) == "/mnt/memory"


def test_the_table_of_settings_needs_no_library_of_models() -> None:
    code = "import sys; sys.modules.update(torch=None, transformers=None); import runtime.settings"
    subprocess.run([sys.executable, "-c", code], check=True)
