"""Labelled examples that requests carry, and whether the responses are right."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import orjson

from gateway.selection.utility import penalty_of_one
from load.labelled_examples import read_examples

if TYPE_CHECKING:
    from load.generator.content import ExampleRules
    from load.generator.responses import RequestResult
    from load.generator.trace_arrivals import TraceArrival
    from load.labelled_examples import LabelledExamples

_MAX_CLASSES: Final = 1000
MAX_RESPONSE_BYTES: Final = 1 << 20


def drawn_example(seed: int, row: int, count: int) -> int:
    """Which of `count` examples the request in this row of a trace carries."""
    return random.Random(f"{seed}-{row}").randrange(count)


def read_rules_examples(rules: ExampleRules) -> LabelledExamples:
    """Raises InvalidExamples."""
    return read_examples(Path(rules.path), classes=_MAX_CLASSES, inputs=[], needs_every_class=False)


def example_body(examples: LabelledExamples, row: int) -> bytes:
    """A V2 request for one example."""
    inputs = [
        {
            "name": name,
            "datatype": "FP32",
            "shape": [1, *values.shape[1:]],
            "data": values[row].ravel().tolist(),
        }
        for name, values in examples.inputs.items()
    ]
    return orjson.dumps({"inputs": inputs})


def judge(result: RequestResult, arrival: TraceArrival, rules: ExampleRules, body: bytes) -> None:
    """Set the result's prediction and the utility that it has achieved; a failure has none."""
    result.utility = 0.0
    result.deadline_s = deadline_s = arrival.deadline_s or rules.deadline_s
    if result.error is not None or result.finished_s is None:
        return
    result.prediction = predicted_label(body, rules.output)
    late = 0.0
    if deadline_s is not None:
        late = penalty_of_one(rules.penalty, deadline_s, result.finished_s - arrival.at_s)
    result.utility = (result.prediction == result.label) * (1.0 - late)


def predicted_label(body: bytes, output: str) -> int | None:
    """The first number of an output of a V2 response; None: it has none."""
    try:
        document: Any = orjson.loads(body)
        for each in document["outputs"]:
            if each["name"] == output:
                return int(each["data"][0])
    except (ValueError, KeyError, TypeError, IndexError):
        return None
    return None
