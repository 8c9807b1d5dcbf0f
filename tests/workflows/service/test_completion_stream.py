"""Events of a completion, however they are cut, become its text."""

import contextlib
import gc
import weakref

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workflows.errors import StepLost, WorkflowError
from workflows.values import (
    CompletionStream,
    StreamedText,
    completion_body,
    plain_value,
    tensor_of,
    text_tensor,
)

DONE = b"data: [DONE]\n\n"


def event(document: object) -> bytes:
    return b"data: " + orjson.dumps(document) + b"\n\n"


def words(*texts: str) -> bytes:
    return b"".join(event({"choices": [{"index": 0, "text": text}]}) for text in texts)


@given(st.lists(st.text(min_size=1), max_size=5), st.integers(1, 40))
def test_the_text_does_not_depend_on_how_the_body_is_cut(texts: list[str], size: int) -> None:
    pieces: list[str] = []
    stream = CompletionStream(pieces.append)
    body = words(*texts) + DONE
    for at in range(0, len(body), size):
        stream.feed(body[at : at + size])
    assert pieces == texts
    assert plain_value(stream.outputs()["text"]) == "".join(texts)


@pytest.mark.parametrize(
    ("body", "error"),
    [
        pytest.param(words("a"), StepLost, id="broke off"),
        pytest.param(words("a") + event({"error": {"message": "no"}}), WorkflowError, id="failed"),
        pytest.param(event({"choices": [{}]}) + DONE, WorkflowError, id="no text"),
        pytest.param(b"data: {\n\n" + DONE, WorkflowError, id="no JSON"),
    ],
)
def test_a_stream_that_does_not_end_well_fails(body: bytes, error: type[Exception]) -> None:
    stream = CompletionStream(lambda _: None)
    stream.feed(body)
    with pytest.raises(error):
        stream.outputs()


def test_a_stream_that_failed_is_freed_at_once() -> None:
    stream = CompletionStream(lambda _: None)
    stream.feed(event({"error": {"message": "no"}}))
    left = weakref.ref(stream)
    gc.disable()
    try:
        with contextlib.suppress(WorkflowError):
            stream.outputs()
        del stream
        assert left() is None
    finally:
        gc.enable()


def test_the_request_is_the_same_for_each_attempt() -> None:
    tensors = [text_tensor("text", "hi"), tensor_of("temperature", {"value": 0.7})]
    first = completion_body("writer", tensors, "run.0")
    assert first == completion_body("writer", tensors, "run.0")
    document = orjson.loads(first)
    assert (document["prompt"], document["temperature"], document["stream"]) == ("hi", 0.7, True)
    assert document["seed"] != orjson.loads(completion_body("writer", tensors, "run.1"))["seed"]


@pytest.mark.parametrize(
    ("first", "again", "differs"),
    [("ab", "abc", False), ("abc", "ab", False), ("ab", "ax", True), ("ab", "b", True)],
)
def test_a_text_generated_again_must_be_the_same(first: str, again: str, differs: bool) -> None:
    text = StreamedText()
    for attempt in (first, again):
        text.begin()
        for piece in attempt:
            text.append(piece)
    assert text.differs is differs
