"""OpenAI's bodies: what is taken, what is refused by name, and what templates get."""

from typing import Any

import orjson
import pytest

from runtime.openai.checks import parse_openai_body
from runtime.openai.requests import ChatBody, CompletionBody, EmbeddingBody, InvalidField, ModelBody

USER = {"role": "user", "content": "x"}
CALL = {"id": "a", "type": "function", "function": {"name": "f", "arguments": '{"a": [1]}'}}
BASE: dict[type[ModelBody], dict[str, Any]] = {
    ChatBody: {"model": "m", "messages": [USER]},
    CompletionBody: {"model": "m", "prompt": "x"},
    EmbeddingBody: {"model": "m", "input": "x"},
}


def parsed(kind: type[ModelBody], **fields: Any) -> Any:
    return parse_openai_body(kind, orjson.dumps({**BASE[kind], **fields}))


@pytest.mark.parametrize("kind", BASE)
@pytest.mark.parametrize("field", ["frobnicate", "thinking", "guided_json", "dimensions"])
def test_a_field_that_would_change_the_answer_is_refused_by_name(
    kind: type[ModelBody], field: str
) -> None:
    with pytest.raises(InvalidField, match=field) as error:
        parsed(kind, **{field: 1})
    assert error.value.param == field
    parsed(kind, **{field: None})


@pytest.mark.parametrize(
    ("kind", "field", "value"),
    [
        (ChatBody, "structured_outputs", {"choice": ["a"]}),
        (ChatBody, "response_format", {"type": "json_object"}),
        (ChatBody, "tools", [{}]),
        (ChatBody, "chat_template", "{{ messages }}"),
        (ChatBody, "reasoning_effort", "low"),
        (CompletionBody, "echo", True),
        (CompletionBody, "suffix", "end"),
        (CompletionBody, "bad_words", ["x"]),
        (CompletionBody, "use_beam_search", True),
        (CompletionBody, "top_k", -2),
        (CompletionBody, "min_p", 1.5),
        (CompletionBody, "repetition_penalty", 0),
        (CompletionBody, "stop_token_ids", [-1]),
        (CompletionBody, "min_tokens", -1),
        (CompletionBody, "truncate_prompt_tokens", 0),
        (CompletionBody, "logit_bias", {"a": 1}),
        (CompletionBody, "logit_bias", {"5": 101}),
        (ChatBody, "chat_template_kwargs", {"messages": []}),
        (ChatBody, "add_generation_prompt", "yes"),
    ],
)
def test_a_value_that_is_not_supported_is_refused_by_name(
    kind: type[ModelBody], field: str, value: Any
) -> None:
    with pytest.raises(InvalidField, match=field) as error:
        parsed(kind, **{field: value})
    assert error.value.param == field


def test_fields_that_change_nothing_are_taken() -> None:
    parsed(
        ChatBody,
        user="u",
        metadata={"a": "b"},
        store=True,
        service_tier="auto",
        tools=[],
        safety_identifier="s",
        prompt_cache_key="k",
        parallel_tool_calls=True,
        logprobs=False,
        stream_options={"include_usage": True},
        response_format={"type": "text"},
    )
    parsed(EmbeddingBody, user="u", encoding_format="float")


def test_the_generation_prompt_is_left_out_where_a_message_is_continued() -> None:
    assert parsed(ChatBody).template_options == {
        "add_generation_prompt": True,
        "continue_final_message": False,
    }
    continued = parsed(ChatBody, continue_final_message=True, chat_template_kwargs={"a": 1})
    assert continued.template_options == {
        "a": 1,
        "add_generation_prompt": False,
        "continue_final_message": True,
    }
    with pytest.raises(InvalidField, match="add_generation_prompt"):
        parsed(ChatBody, continue_final_message=True, add_generation_prompt=True)


@pytest.mark.parametrize(
    ("message", "template"),
    [
        pytest.param(
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [{**CALL, "function": {"name": "f", "arguments": {"a": [1]}}}],
            },
            id="tool-calls",
        ),
        pytest.param(
            {"role": "assistant", "function_call": {"name": "f", "arguments": "not JSON"}},
            {
                "role": "assistant",
                "content": "",
                "function_call": {"name": "f", "arguments": "not JSON"},
            },
            id="function-call",
        ),
        pytest.param(
            {
                "role": "assistant",
                "content": None,
                "refusal": "no",
                "tool_calls": None,
                "audio": None,
                "annotations": [],
            },
            {"role": "assistant", "content": "no"},
            id="refusal",
        ),
        pytest.param(
            {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
            {"role": "assistant", "content": "no"},
            id="part-of-a-refusal",
        ),
        pytest.param(
            {"role": "tool", "tool_call_id": "a", "content": "3"},
            {"role": "tool", "tool_call_id": "a", "content": "3"},
            id="tool",
        ),
    ],
)
def test_templates_get_the_calls_of_a_history(
    message: dict[str, Any], template: dict[str, Any]
) -> None:
    body = parsed(ChatBody, messages=[USER, message, USER])
    assert body.messages[1].for_template() == template


@pytest.mark.parametrize(
    ("message", "field"),
    [
        ({"role": "user", "content": None}, "content"),
        ({"role": "assistant"}, "content"),
        ({"role": "assistant", "content": None, "tool_calls": []}, "content"),
        ({"role": "user", "tool_calls": [CALL]}, "content"),
        ({"role": "assistant", "tool_calls": [{"id": "a"}]}, "tool_calls"),
        ({"role": "assistant", "tool_calls": "f"}, "tool_calls"),
    ],
)
def test_a_message_that_says_nothing_is_refused(message: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidField, match=rf"messages\[1\]\.{field}"):
        parsed(ChatBody, messages=[USER, message])
