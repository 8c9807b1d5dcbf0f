"""Lines about failed requests: one a minute of each kind."""

import logging

import pytest

from gateway.telemetry import recent_requests
from gateway.telemetry.recent_requests import INTERVAL_S, FailureLog, RecentRequest


def failed(model: str, at_s: float, error: str = "no disk") -> RecentRequest:
    return RecentRequest("r", at_s, model, "auto", "disk-full", "", 507, "pod-0", None, None, error)


def lines(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [each for each in caplog.records if each.name == recent_requests.__name__]


def test_a_failure_is_logged_once_in_a_while_with_what_was_left_out(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log = FailureLog()
    for at_s in (100.0, 101.0, 102.0, 100.0 + INTERVAL_S):
        log.log(failed("a/m", at_s))
    assert [vars(each)["unlogged"] for each in lines(caplog)] == [0, 2]
    assert {vars(each)["error"] for each in lines(caplog)} == {"no disk"}


def test_each_model_has_a_line_of_its_own(caplog: pytest.LogCaptureFixture) -> None:
    log = FailureLog()
    for model in ("a/m", "b/m", "a/m"):
        log.log(failed(model, 100.0))
    assert [vars(each)["model"] for each in lines(caplog)] == ["a/m", "b/m"]


def test_kinds_are_bounded(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recent_requests, "MAX_KINDS", 2)
    log = FailureLog()
    for model in ("a/1", "a/2", "a/3", "a/3", "a/1"):
        log.log(failed(model, 100.0))
    assert [vars(each)["model"] for each in lines(caplog)] == ["a/1", "a/2", "a/3", "a/1"]
