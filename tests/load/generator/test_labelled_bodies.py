"""Requests with labelled examples: which one is sent, and what a response to it is worth."""

from pathlib import Path

import numpy as np
import orjson
import pytest

from load.generator.bodies import RequestBodies, judge, predicted_label
from load.generator.records import RecordPart, RequestResult, record_row, schema_of
from load.generator.settings import Content, ContentKind, ExampleRules, RequestProtocol
from load.generator.trace_arrivals import TraceArrival
from load.schema import ANSWER_SCHEMA


def _arrival(row: int = 0, deadline_s: float | None = None) -> TraceArrival:
    return TraceArrival(row, 10.0, "default", "digits", 1, 0, deadline_s)


def _response(label: int) -> bytes:
    return orjson.dumps(
        {"outputs": [{"name": "scores", "data": [0.5]}, {"name": "label", "data": [label]}]}
    )


def test_bodies_hold_one_example_drawn_by_seed_and_row(tmp_path: Path) -> None:
    rows = np.arange(20, dtype=np.float32).reshape(10, 2)
    np.savez(tmp_path / "a.npz", features=rows, labels=np.arange(10))
    rules = ExampleRules(str(tmp_path / "a.npz"))
    content = Content(ContentKind.EXAMPLES, examples=rules)
    sent, again = (
        [bodies.body(_arrival(row), content) for row in range(30)]
        for bodies in (RequestBodies(RequestProtocol.V2, 1) for _ in range(2))
    )
    assert sent == again
    assert len({each.label for each in sent}) > 3
    for each in sent:
        [tensor] = orjson.loads(each.data)["inputs"]
        assert each.label is not None
        assert tensor["data"] == rows[each.label].tolist()


@pytest.mark.parametrize(
    ("predicted", "took_s", "utility"),
    [
        pytest.param(3, 0.1, 1.0, id="right in time"),
        pytest.param(3, 0.15, 0.5, id="right and half a deadline late"),
        pytest.param(3, 0.3, 0.0, id="right and far too late"),
        pytest.param(4, 0.05, 0.0, id="wrong"),
    ],
)
def test_utility_is_what_lateness_leaves_of_a_right_answer(
    predicted: int, took_s: float, utility: float
) -> None:
    result = RequestResult(finished_s=10.0 + took_s, label=3, status=200)
    judge(result, _arrival(deadline_s=0.1), ExampleRules(""), _response(predicted))
    assert result.prediction == predicted
    assert result.utility == pytest.approx(utility, abs=1e-6)


def test_the_applications_deadline_holds_where_the_trace_has_none(tmp_path: Path) -> None:
    result = RequestResult(finished_s=11.0, label=3, status=200)
    judge(result, _arrival(), ExampleRules("", deadline_s=0.5), _response(3))
    assert result.utility == 0.0
    part = RecordPart(tmp_path / "0.arrows", has_answers=True)
    part.add(record_row(_arrival(), result, request_id="r", policy=None))
    part.close()
    assert schema_of(tmp_path) == ANSWER_SCHEMA
    row = dict(
        zip(
            ANSWER_SCHEMA.names,
            record_row(_arrival(), result, request_id="r", policy=None),
            strict=True,
        )
    )
    assert (row["deadline_s"], row["label"], row["prediction"]) == (0.5, 3, 3)


def test_a_failure_has_no_utility_and_another_body_no_prediction() -> None:
    failed = RequestResult(error="lost", label=3)
    judge(failed, _arrival(), ExampleRules(""), b"")
    assert (failed.utility, failed.prediction) == (0.0, None)
    for body in (b"", b"{}", b"[1]", b'{"outputs": [{"name": "label", "data": []}]}'):
        assert predicted_label(body, "label") is None
