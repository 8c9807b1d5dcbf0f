"""The prompts of bodies, as blocks."""

import gzip
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.http.prompts import has_prompt, read_prompt
from gateway.http.targets import ModelTarget, Verb, openai_target
from registry.domain.model import ModelName, ModelSpec, Task
from registry.domain.prompt_prefixes import Prompt

SYSTEM = {"role": "system", "content": "You answer briefly, in the words of the question. " * 20}
FIRST = [SYSTEM, {"role": "user", "content": "What is a cat, and what does it eat? " * 10}]
SECOND = [*FIRST, {"role": "assistant", "content": "An animal. " * 9}]
NAME = ModelName("default", "m")


def read(document: Any, **options: Any) -> Prompt:
    body = json.dumps(document, **options).encode()
    found = read_prompt([body[:100], body[100:]], len(body))
    assert found is not None
    return found


def common(one: Prompt, other: Prompt) -> int:
    same = [a == b for a, b in zip(one.blocks, other.blocks, strict=False)]
    return same.index(False) if False in same else len(same)


def test_the_next_turn_begins_with_the_blocks_of_the_one_before() -> None:
    before = read({"model": "m", "messages": FIRST, "temperature": 0.5})
    after = read({"stream": True, "messages": SECOND, "model": "m"}, separators=(",", ":"))
    assert len(before.blocks) >= 20
    assert common(before, after) >= len(before.blocks) - 1  # its last may have the end of the list
    assert len(after.blocks) > len(before.blocks)


def test_blocks_count_all_text_before_them() -> None:
    one = read({"prompt": "x" * 640})
    other = read({"prompt": "y" + "x" * 639})
    assert len(one.blocks) == 10
    assert common(one, other) == 0
    assert len(set(one.blocks)) == 10


@pytest.mark.parametrize(
    ("limit", "tokens"),
    [
        pytest.param({"max_tokens": 300}, 300, id="completions"),
        pytest.param({"max_completion_tokens": 20, "max_tokens": 30}, 20, id="chat"),
        pytest.param({"max_output_tokens": 7}, 7, id="responses"),
        pytest.param({"max_tokens": None}, 0, id="null"),
        pytest.param({"max_tokens": -5}, 0, id="negative"),
        pytest.param({}, 0, id="none"),
    ],
)
def test_the_tokens_that_may_follow_a_prompt(limit: dict[str, int | None], tokens: int) -> None:
    assert read({"prompt": "x", **limit}).new_tokens == tokens


def test_tools_come_before_messages() -> None:
    tools = [{"type": "function", "function": {"name": "weather", "description": "of " * 50}}]
    one = read({"messages": FIRST, "tools": tools})
    other = read({"tools": tools, "messages": SECOND})
    assert common(one, other) >= len(one.blocks) - 1
    assert common(one, read({"messages": FIRST})) == 0


@pytest.mark.parametrize(
    "document",
    [
        pytest.param({"prompt": "a b c " * 100}, id="completion"),
        pytest.param({"prompt": list(range(300))}, id="completion-of-tokens"),
        pytest.param({"instructions": "be short", "input": "a b c " * 100}, id="responses"),
        pytest.param({"instances": ["a b c " * 100]}, id="v1"),
        pytest.param(
            {"inputs": [{"name": "text", "datatype": "BYTES", "data": ["a b c " * 100]}]}, id="v2"
        ),
    ],
)
def test_reads_all_protocols(document: dict[str, Any]) -> None:
    found = read(document)
    assert len(found.blocks) >= 9
    assert found.tokens == pytest.approx(16 * len(found.blocks), abs=16)


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"[1]", id="no-object"),
        pytest.param(b'{"query": "a text"}', id="no-prompt"),
        pytest.param(gzip.compress(b'{"prompt": "a"}'), id="packed"),
        pytest.param(b'{"prompt": %d}' % 10**30, id="a-huge-number"),
    ],
)
def test_without_a_prompt(body: bytes) -> None:
    assert read_prompt([body], len(body)) is None


def test_reads_the_beginning_of_long_bodies() -> None:
    text = "a long document, " * 20_000
    one = read({"model": "m", "messages": [{"role": "user", "content": text}]})
    assert len(one.blocks) == 1023
    assert one.tokens == pytest.approx(len(text) / 4, rel=0.01)
    assert common(one, read({"messages": [{"role": "user", "content": text[:-1]}]})) >= 1020


def test_text_that_is_no_ascii() -> None:
    body = json.dumps({"prompt": "猫は何を食べますか" * 5000}, ensure_ascii=False).encode()
    found = read_prompt([body], len(body))  # cut within a character
    assert found is not None
    assert len(found.blocks) >= 1000


CHAT, EMBEDDINGS = "chat/completions", "embeddings"


@pytest.mark.parametrize(
    ("target", "task", "expected"),
    [
        pytest.param(CHAT, None, True, id="chat"),
        pytest.param("completions", Task.TEXT_GENERATION, True, id="completions"),
        pytest.param(CHAT, Task.TEXT_TO_TEXT, False, id="another-task"),
        pytest.param("responses", None, True, id="responses"),
        pytest.param(EMBEDDINGS, None, False, id="embeddings"),
        pytest.param(Verb.PREDICT, Task.TEXT_GENERATION, True, id="v1"),
        pytest.param(Verb.INFER, Task.TEXT_GENERATION, True, id="v2"),
        pytest.param(Verb.INFER, None, False, id="v2-of-an-unknown-task"),
        pytest.param(Verb.INFER, Task.TEXT_EMBEDDING, False, id="v2-embedding"),
    ],
)
def test_whose_prompts_are_read(target: str, task: Task | None, expected: bool) -> None:
    spec = ModelSpec(NAME, "file:///m", task=task)
    asked = (
        ModelTarget(NAME, "m", target)
        if isinstance(target, Verb)
        else openai_target("default", "m", target)
    )
    assert has_prompt(asked, spec) is expected


def test_a_prompt_shorter_than_a_block_has_none() -> None:
    assert read({"prompt": "hello"}).blocks == []


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=200),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=9), inner),
    max_leaves=20,
)


@given(
    st.fixed_dictionaries({}, optional=dict.fromkeys(("prompt", "messages", "inputs"), JSON)) | JSON
)
def test_any_body_is_read(document: Any) -> None:
    body = json.dumps(document).encode()
    for cut in (len(body), len(body) // 2):
        prompt = read_prompt([body[:cut]], len(body))
        assert prompt is None or len(prompt.blocks) <= len(body) // 32
