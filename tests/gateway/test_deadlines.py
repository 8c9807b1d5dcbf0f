"""Deadlines of many requests share one timer."""

import pytest

from gateway.request_task import Deadlines
from load.simulator.event_queue import EventQueue


class Request:
    def __init__(self, events: EventQueue) -> None:
        self._events = events
        self.expired_s: list[float] = []

    def on_deadline(self) -> None:
        self.expired_s.append(self._events.now_s)


def test_each_request_expires_at_its_deadline_and_not_before() -> None:
    events = EventQueue()
    deadlines = Deadlines(events, events.now)
    lasting_s = (0.5, 0.004, 60.0, 0.0, 0.2, 0.2, 1.5)
    requests = [Request(events) for _ in lasting_s]
    for request, left_s in zip(requests, lasting_s, strict=True):
        deadlines.add(request, left_s, 0.0)
    events.run_some(1000, until=lambda: False)
    for request, left_s in zip(requests, lasting_s, strict=True):
        (expired_s,) = request.expired_s
        assert 0.0 <= expired_s - left_s <= (0.01 if left_s < 1.0 else 0.1)


def test_a_request_that_has_ended_does_not_expire() -> None:
    events = EventQueue()
    deadlines = Deadlines(events, events.now)
    ended, open_request = Request(events), Request(events)
    deadlines.add(ended, 0.5, 0.0).discard(ended)
    deadlines.add(open_request, 0.5, 0.0)
    events.run_some(1000, until=lambda: False)
    assert not ended.expired_s
    assert len(open_request.expired_s) == 1


def test_one_that_fails_at_its_deadline_keeps_no_other_open(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Failing(Request):
        def on_deadline(self) -> None:
            super().on_deadline()
            raise ValueError("of the request's own")

    events = EventQueue()
    deadlines = Deadlines(events, events.now)
    requests = [*(Failing(events) for _ in range(5)), *(Request(events) for _ in range(5))]
    for request in requests:
        deadlines.add(request, 0.5, 0.0)
    later = Request(events)
    deadlines.add(later, 1.5, 0.0)
    events.run_some(1000, until=lambda: False)
    assert [len(each.expired_s) for each in (*requests, later)] == [1] * 11
    assert caplog.text.count("ValueError: of the request's own") == 5
