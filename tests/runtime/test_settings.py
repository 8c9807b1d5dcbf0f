"""Settings: flag over environment over default, all mistakes together."""

from __future__ import annotations

import pytest

from registry.settings_table import read_settings, settings_from_fields
from runtime.generation.limits import Attention
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
    with pytest.raises(ValueError, match="lease") as caught:
        settings_from_fields(
            RuntimeSettings,
            {
                "slots": -1,
                "lease_ttl": "-1",
                "nme": "x",
                "eviction": "fifo",
                "device": "tpu",
                "attention_backend": "flash",
            },
        )
    message = str(caught.value)
    slots = "--slots must be a whole number of at least 0, was '-1'"
    eviction = "--eviction must be one of lru, greedy-dual, was 'fifo'"
    device = "--device must be auto, cpu or cuda, was 'tpu'"
    attention = "--attention-backend must be sdpa or paged, was 'flash'"
    for part in (slots, eviction, device, attention, "--lease-ttl", "'nme'", "--name is"):
        assert part in message


def test_mistakes_on_the_command_line_end_with_status_2(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as caught:
        read(["--name", "a", "--port", "x"], {})
    assert caught.value.code == 2
    assert "--port" in capsys.readouterr().err


def test_attention_gathers_pages_by_default() -> None:
    limits = read(["--name", "a"], {}).generation_limits
    assert limits.attention is Attention.SDPA
    given = read(["--name", "a", "--attention-backend", "paged"], {}).generation_limits
    assert given.attention is Attention.PAGED


def test_host_folder_is_one_per_pool_and_node() -> None:
    settings = read(["--name", "a", "--pool", "p", "--node", "n"], {})
    assert settings.host_path.parts[:3] == ("/", "dev", "shm")
    assert settings.host_path.name == "p~n"
    given = read(["--name", "a"], {"PILOTLIGHT_HOST_DIR": "/mnt/memory"})
    assert str(given.host_path) == "/mnt/memory"


def test_fronts_are_refused_beside_a_model_server() -> None:
    with pytest.raises(ValueError, match="front-processes must be 0 with a model server, was 2"):
        RuntimeSettings(
            name="a", front_processes=2, engine_url="http://127.0.0.1:8000", engine_repository="/m"
        )
    with pytest.raises(ValueError, match="--front-processes must be a whole number from 0 to 64"):
        settings_from_fields(RuntimeSettings, {"name": "a", "front_processes": 65})
