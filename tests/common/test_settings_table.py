from dataclasses import dataclass

import pytest

from common.settings_table import (
    option,
    parse_bool,
    parse_int,
    parse_seconds,
    read_settings,
    settings_from_fields,
)
from registry.redis.server_address import parse_redis_url


@dataclass(frozen=True, slots=True)
class Settings:
    """A component for tests."""

    slots: int = option(1, parse_int(1, 8), "requests at a time")
    lease_ttl: float = option(3.0, parse_seconds, "100% certain after this time")
    is_verbose: bool = option(False, parse_bool, "log more")
    registry: str = option("redis://", parse_redis_url, "URL of the registry")


def read(*arguments: str, **environment: str) -> Settings:
    return read_settings(Settings, arguments, environment, prog="test")


def test_flags_override_the_environment_which_overrides_defaults() -> None:
    assert read() == Settings()
    assert read(PILOTLIGHT_SLOTS="2", PILOTLIGHT_LEASE_TTL="1.5") == Settings(2, 1.5)
    assert read("--slots", "3", PILOTLIGHT_SLOTS="2") == Settings(3)


def test_an_empty_flag_is_a_value_and_not_the_default(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        read("--slots", "", PILOTLIGHT_SLOTS="2")
    assert "--slots" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [([], False), (["--is-verbose"], True), (["--is-verbose", "no"], False)],
)
def test_a_boolean_flag_needs_no_value(arguments: list[str], expected: bool) -> None:
    assert read(*arguments).is_verbose is expected


def test_all_mistakes_are_reported_together_with_exit_status_2(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as ended:
        read("--slots", "9", "--lease-ttl", "nan", "--registry", "http://x", "--is-verbose=perhaps")
    assert ended.value.code == 2
    output = capsys.readouterr().err
    for part in (
        "--slots must be a whole number from 1 to 8, was '9'",
        "--lease-ttl must be a positive number of seconds, was 'nan'",
        "--registry the Redis URL must begin with",
        "--is-verbose must be true or false, was 'perhaps'",
    ):
        assert part in output


def test_help_names_every_flag_and_variable(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        read("--help")
    output = capsys.readouterr().out
    assert "--lease-ttl" in output
    assert "PILOTLIGHT_LEASE_TTL" in output
    assert "100% certain" in output


def test_settings_from_fields_are_parsed_like_flags() -> None:
    assert settings_from_fields(Settings, {"slots": 2, "is_verbose": True}) == Settings(
        2, is_verbose=True
    )
    with pytest.raises(ValueError, match="unknown setting 'slot'"):
        settings_from_fields(Settings, {"slot": 2})
