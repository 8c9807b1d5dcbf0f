"""The headers that a pod reads."""

import pytest

from common.inference_protocol import InvalidRequest
from runtime.inference_request import parse_request_head


def test_a_step_is_due_before_the_deadline_by_what_follows() -> None:
    headers = {"x-pilotlight-deadline-ms": "5000", "x-pilotlight-following-ms": "1500"}
    head = parse_request_head("m", headers)
    assert head.deadline_s is not None
    assert head.due_s == pytest.approx(head.deadline_s - 1.5)
    assert parse_request_head("m", {"x-pilotlight-deadline-ms": "5000"}).due_s is None
    assert parse_request_head("m", {"x-pilotlight-following-ms": "1500"}).due_s is None


@pytest.mark.parametrize("text", ["soon", "-1", "1.5", "9" * 30])
def test_what_follows_is_a_whole_number_of_milliseconds(text: str) -> None:
    headers = {"x-pilotlight-deadline-ms": "5000", "x-pilotlight-following-ms": text}
    with pytest.raises(InvalidRequest, match="must be a whole number of milliseconds, was"):
        parse_request_head("m", headers)
