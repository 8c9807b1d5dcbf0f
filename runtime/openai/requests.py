"""OpenAI's request bodies: the supported fields with their ranges, and the unsupported ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Final, Self, TypeVar

import orjson
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from common.inference_protocol import InvalidRequest

MAX_TOOL_CALLS = 128
"""Of a message."""


class ContentPart(BaseModel):
    """A part of a message's content: text, or the text of a refusal."""

    model_config = ConfigDict(strict=True)
    type: Annotated[str, Field(pattern="^(text|refusal)$")]
    text: str

    @model_validator(mode="before")
    @classmethod
    def _reads_refusals(cls, part: Any) -> Any:
        if isinstance(part, dict) and part.get("type") == "refusal" and "refusal" in part:
            return {"type": "refusal", "text": part["refusal"]}
        return part


class FunctionCall(BaseModel):
    model_config = ConfigDict(strict=True)
    name: str
    arguments: str

    def for_template(self) -> dict[str, Any]:
        """With the arguments as an object, over which templates iterate, where they are one."""
        try:
            arguments = orjson.loads(self.arguments or "{}")
        except orjson.JSONDecodeError:  # as a model made it
            arguments = self.arguments
        return {"name": self.name, "arguments": arguments}


class ToolCall(BaseModel):
    model_config = ConfigDict(strict=True)
    id: str | None = None
    type: Annotated[str, Field(pattern="^function$")] = "function"
    function: FunctionCall

    def for_template(self) -> dict[str, Any]:
        return {"id": self.id, "type": self.type, "function": self.function.for_template()}


class Message(BaseModel):
    """One message; an assistant that called a tool, or refused, may have said nothing."""

    model_config = ConfigDict(strict=True)
    role: Annotated[str, Field(pattern="^(system|developer|user|assistant|tool|function)$")]
    content: str | Annotated[list[ContentPart], Field(fail_fast=True)]
    name: str | None = None
    tool_call_id: str | None = None
    tool_calls: (
        Annotated[list[ToolCall], Field(max_length=MAX_TOOL_CALLS, fail_fast=True)] | None
    ) = None
    function_call: FunctionCall | None = None
    refusal: str | None = None
    reasoning_content: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _may_say_nothing(cls, message: Any) -> Any:
        if not isinstance(message, dict) or message.get("content") is not None:
            return message
        refusal = message.get("refusal")
        is_assistant = message.get("role") == "assistant"
        if is_assistant and (refusal or message.get("tool_calls") or message.get("function_call")):
            return {**message, "content": refusal if isinstance(refusal, str) else ""}
        return message

    def for_template(self) -> dict[str, Any]:
        """The message in the form of chat templates, which ask what is there."""
        text = self.content
        if not isinstance(text, str):
            text = "".join(part.text for part in text)
        fields = {
            "name": self.name,
            "tool_call_id": self.tool_call_id,
            "tool_calls": [each.for_template() for each in self.tool_calls or ()] or None,
            "function_call": self.function_call and self.function_call.for_template(),
            "reasoning_content": self.reasoning_content,
        }
        given = {name: value for name, value in fields.items() if value is not None}
        return {"role": self.role, "content": text, **given}


MAX_CHOICES = 16
MAX_STOPS = 16
MAX_STOP_CHARACTERS = 256
MAX_STOP_TOKENS = 128
MAX_BIASES = 1024
MAX_MESSAGES = 4096
MAX_PROMPT_TOKENS = 1 << 20

TokenIds = Annotated[list[int], Field(min_length=1, fail_fast=True)]
TokenLists = Annotated[list[TokenIds], Field(min_length=1, fail_fast=True)]
Texts = Annotated[list[str], Field(min_length=1, fail_fast=True)]
Stop = Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARACTERS)]
Penalty = Annotated[float, Field(ge=-2, le=2)]
TokenId = Annotated[int, Field(ge=0)]
Bias = Annotated[float, Field(ge=-100, le=100)]
Unsupported = Mapping[str, tuple[Any, ...]]
"""Unsupported fields, each with the values that have no effect and are therefore allowed."""
UNSUPPORTED_OF_VLLM: Unsupported = {
    "structured_outputs": (), "guided_json": (), "guided_regex": (), "guided_choice": (),
    "guided_grammar": (), "guided_decoding_backend": (), "guided_whitespace_pattern": (),
    "bad_words": ([],), "allowed_token_ids": (), "logits_processors": ([],),
    "use_beam_search": (False,), "length_penalty": (1.0,), "early_stopping": (False,),
    "prompt_logprobs": (0,), "return_tokens_as_token_ids": (False,), "return_token_ids": (False,),
    "spaces_between_special_tokens": (True,), "response_format": ({"type": "text"},),
}  # fmt: skip
RESERVED: Final = frozenset({
    "conversations", "messages", "chat_template", "tools", "tokenize", "add_generation_prompt",
    "continue_final_message", "return_assistant_tokens_mask",
})  # fmt: skip
"""Names of a chat template's variables that a request sets by fields of their own, or never."""


class InvalidField(InvalidRequest):
    """One field of an OpenAI body is wrong; `param` names it."""

    def __init__(self, message: str, *, param: str | None, code: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        self.code = code


class StreamOptions(BaseModel):
    model_config = ConfigDict(strict=True)
    include_usage: bool | None = None


class ModelBody(BaseModel):
    """The field that all bodies have. In optional fields null means the default."""

    unsupported: ClassVar[Unsupported] = {}
    """With values that change nothing."""
    ignored: ClassVar[frozenset[str]] = frozenset(
        ["user", "metadata", "safety_identifier", "request_id", "priority", "cache_salt"]
    )
    """Fields that do not change the response."""
    max_items: ClassVar[Mapping[str, int]] = {}
    """Longest lists of the fields."""
    model_config = ConfigDict(strict=True)
    model: Annotated[str, Field(min_length=1)]


class GenerationBody(ModelBody):
    """The fields that completions and chat share."""

    max_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    stop: Stop | Annotated[list[Stop], Field(fail_fast=True)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    logit_bias: Annotated[dict[str, Bias], Field(max_length=MAX_BIASES)] | None = None

    # vLLM's
    top_k: Annotated[int, Field(ge=-1)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=10)] | None = None
    stop_token_ids: Annotated[list[TokenId], Field(max_length=MAX_STOP_TOKENS)] | None = None
    min_tokens: Annotated[int, Field(ge=0)] | None = None
    ignore_eos: bool | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    truncate_prompt_tokens: Annotated[int, Field(ge=-1)] | None = None

    ignored: ClassVar[frozenset[str]] = ModelBody.ignored | frozenset(
        ["store", "service_tier", "prompt_cache_key", "prompt_cache_retention", "prediction"]
    )

    @field_validator("logit_bias")
    @classmethod
    def _names_tokens(cls, bias: dict[str, float] | None) -> dict[str, float] | None:
        for token in bias or ():
            if not token.isdecimal():
                raise PydanticCustomError("token", "an object of numbers by token")
        return bias

    @field_validator("truncate_prompt_tokens")
    @classmethod
    def _keeps_tokens(cls, count: int | None) -> int | None:
        if count == 0:
            raise PydanticCustomError("count", "1 or more, or -1")
        return count

    @property
    def biases(self) -> tuple[tuple[int, float], ...]:
        return tuple((int(token), bias) for token, bias in (self.logit_bias or {}).items())

    @property
    def stops(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    @property
    def wants_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)

    @property
    def max_new_tokens(self) -> int | None:
        return self.max_tokens


class CompletionBody(GenerationBody):
    """`/openai/v1/completions`."""

    unsupported: ClassVar[Unsupported] = {
        "echo": (False,),
        "suffix": ("",),
        "best_of": (1,),
        "logprobs": (),
        **UNSUPPORTED_OF_VLLM,
    }
    max_items: ClassVar[Mapping[str, int]] = {"prompt": MAX_PROMPT_TOKENS, "stop": MAX_STOPS}
    prompt: str | TokenIds | Texts | TokenLists

    @property
    def prompts(self) -> list[str | list[int]]:
        return _texts_or_tokens(self.prompt)


def _texts_or_tokens(field: str | list[int] | list[str] | list[list[int]]) -> list[str | list[int]]:
    """Each of a field's inputs, as text or as tokens."""
    match field:
        case str() as text:
            return [text]
        case [int(), *_] as token_ids:
            return [[each for each in token_ids if isinstance(each, int)]]
        case several:
            return [each for each in several if not isinstance(each, int)]


class ChatBody(GenerationBody):
    """`/openai/v1/chat/completions`."""

    unsupported: ClassVar[Unsupported] = {
        "tools": ([],),
        "functions": ([],),
        "tool_choice": ("none",),
        "function_call": ("none",),
        "response_format": ({"type": "text"},),
        "logprobs": (False,),
        "top_logprobs": (0,),
        "modalities": (["text"],),
        "audio": (),
        "web_search_options": (),
        "reasoning_effort": (),
        "verbosity": (),
        "chat_template": (),
        "documents": ([],),
        "add_special_tokens": (False,),
        "echo": (False,),
        "include_reasoning": (True,),
        **UNSUPPORTED_OF_VLLM,
    }
    # Calls of tools, which are refused, are all that it is about.
    ignored: ClassVar[frozenset[str]] = GenerationBody.ignored | {"parallel_tool_calls"}
    max_items: ClassVar[Mapping[str, int]] = {"messages": MAX_MESSAGES, "stop": MAX_STOPS}
    messages: Annotated[list[Message], Field(min_length=1, fail_fast=True)]
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None

    @field_validator("chat_template_kwargs")
    @classmethod
    def _sets_variables(cls, variables: dict[str, Any] | None) -> dict[str, Any] | None:
        if reserved := sorted(RESERVED.intersection(variables or ())):
            raise PydanticCustomError("reserved", f"an object without {', '.join(reserved)}")
        return variables

    @model_validator(mode="after")
    def _ends_in_one_way(self) -> Self:
        if self.continue_final_message and self.add_generation_prompt:
            raise InvalidField(
                "add_generation_prompt must be false where continue_final_message is true",
                param="add_generation_prompt",
            )
        return self

    @property
    def template_options(self) -> dict[str, Any]:
        """Variables of the chat template, and how its text ends."""
        continues = bool(self.continue_final_message)
        begins = not continues if self.add_generation_prompt is None else self.add_generation_prompt
        return {
            **(self.chat_template_kwargs or {}),
            "add_generation_prompt": begins,
            "continue_final_message": continues,
        }

    @property
    def max_new_tokens(self) -> int | None:
        """The newer field takes precedence."""
        return self.max_completion_tokens or self.max_tokens


class EmbeddingBody(ModelBody):
    """`/openai/v1/embeddings`."""

    unsupported: ClassVar[Unsupported] = {"dimensions": (), "truncate_prompt_tokens": ()}
    max_items: ClassVar[Mapping[str, int]] = {"input": MAX_PROMPT_TOKENS}
    input: str | TokenIds | Texts | TokenLists
    encoding_format: Annotated[str, Field(pattern="^(float|base64)$")] | None = None

    @property
    def inputs(self) -> list[str | list[int]]:
        return _texts_or_tokens(self.input)


Body = TypeVar("Body", bound=ModelBody)
