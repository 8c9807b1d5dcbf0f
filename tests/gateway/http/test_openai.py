"""The model that an OpenAI body names, read without parsing the whole body."""

import asyncio
import time

import orjson
import pytest

from gateway.errors import BadRequest, UndeclaredModel
from gateway.http.body import BodyLimits, HeldBodies, IncomingBody
from gateway.http.openai import find_model_field, parse_model_name
from registry.domain.model import ModelName


@pytest.mark.parametrize(
    "beginning",
    [
        pytest.param(b'{"model": "chat"}', id="alone"),
        pytest.param(b'{"model":"chat","messages":[', id="incomplete"),
        pytest.param(b'{"messages": [{"model": "x"}], "model": "chat"', id="key-of-a-message"),
        pytest.param(b'{"prompt": "\\"model\\": \\"x\\"", "model": "chat"', id="inside-a-string"),
        pytest.param(b'{"stop": ["model", "x"], "model": "chat"', id="element-of-a-list"),
        pytest.param(b'{"user": "model", "model": "chat"', id="value-of-another-key"),
        pytest.param(b'{"n": 1, "temperature": 0.5e-3, "model": "chat"', id="after-numbers"),
        pytest.param(b' \n{ "a" : null , "model"\t:\t"ch\\u0061t"', id="white-space-and-escapes"),
        pytest.param(b'{"prompt": "\\\\", "model": "chat"', id="escaped-backslash"),
    ],
)
def test_finds_the_outermost_model_field(beginning: bytes) -> None:
    assert find_model_field(beginning) == "chat"


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"{}", id="empty-object"),
        pytest.param(b'{"prompt": "x"}', id="no-model"),
        pytest.param(b'[{"model": "chat"}]', id="a-list"),
        pytest.param(b'{"model": 3}', id="a-number"),
        pytest.param(b'{"model": ""}', id="no-name"),
        pytest.param(b'{"model": {"model": "chat"}}', id="an-object"),
    ],
)
def test_rejects_a_body_without_model(body: bytes) -> None:
    with pytest.raises(BadRequest, match="model"):
        read_name(ChunkedBody(body))


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"hello", id="a-word"),
        pytest.param(b'{"model" "chat"}', id="no-colon"),
        pytest.param(b'{"model": "\\x"}', id="bad-escape"),
        pytest.param(b'{"model": "chat", "prompt": "\\ud800"}', id="half-of-a-pair"),
        pytest.param(b'{"model": "chat", "prompt": "\xff"}', id="no-utf-8"),
    ],
)
def test_says_why_a_body_is_no_json(body: bytes) -> None:
    with pytest.raises(BadRequest, match=r"is not valid JSON: .* column"):
        read_name(ChunkedBody(body))


@pytest.mark.parametrize("name", ["team/chat", "team~chat", "a\nb", "x" * 300])
def test_rejects_names_of_other_namespaces(name: str) -> None:
    with pytest.raises(UndeclaredModel, match="/serving/NAMESPACE/NAME"):
        parse_model_name(name)
    assert parse_model_name("chat") == ModelName("default", "chat")


HELD = HeldBodies(1 << 30)


class ChunkedBody:
    """A body that arrives in chunks."""

    def __init__(self, *chunks: bytes) -> None:
        self.remaining = list(chunks)
        self.calls = 0

    @property
    def is_complete(self) -> bool:
        return not self.remaining

    @is_complete.setter
    def is_complete(self, value: bool) -> None:
        raise AssertionError(value)

    def take_chunks(self) -> list[bytes]:
        return []

    async def receive_chunks(self) -> list[bytes]:
        self.calls += 1
        return [self.remaining.pop(0)] if self.remaining else []


def read_name(source: ChunkedBody, *, buffer_bytes: int = 1 << 20) -> tuple[str, IncomingBody]:
    body = IncomingBody(source, None, BodyLimits(1 << 30, buffer_bytes, 30.0), HELD)
    return asyncio.run(body.read_model_field()), body


def test_reads_the_body_no_further_than_the_name() -> None:
    source = ChunkedBody(b'{"model": "chat", "prompt": "' + b"x" * 5000, *[b"x" * 1000] * 50, b'"}')
    name, body = read_name(source)
    assert name == "chat"
    assert source.calls == 1
    assert len(body.buffered) == 1


def test_reads_a_name_after_a_long_prompt() -> None:
    source = ChunkedBody(b'{"prompt": "', *[b"x" * 10_000] * 20, b'", "model": "chat"}')
    name, body = read_name(source)
    assert name == "chat"
    assert body.is_complete
    assert orjson.loads(b"".join(body.buffered))["model"] == "chat"


def test_rejects_a_name_beyond_the_buffer_limit() -> None:
    source = ChunkedBody(b'{"prompt": "', *[b"x" * 10_000] * 20, b'", "model": "chat"}')
    with pytest.raises(BadRequest, match="must name a 'model'"):
        read_name(source, buffer_bytes=50_000)
    assert not source.is_complete


def test_scans_a_megabyte_of_brackets_in_seconds() -> None:
    began_s = time.process_time()
    with pytest.raises(BadRequest):
        read_name(ChunkedBody(b'{"a": ' + b"[" * 1_000_000))
    assert time.process_time() - began_s < 10
