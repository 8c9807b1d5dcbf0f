"""OpenAI's request bodies: the supported fields with their ranges, and the unsupported ones.

Unsupported fields that would change the response are refused; all others are ignored, as OpenAI's
own servers do. Lengths are checked first; then pydantic stops at a list's first mistake, since a
body of 2 MB can hold 700,000 of them. A mistake becomes an `InvalidField`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from registry.shown_value import shown
from runtime.errors import InvalidRequest
from runtime.openai.field_errors import describe_errors, first_field
from runtime.wire.v2 import parse_object

MAX_CHOICES = 16
MAX_PROMPTS = 32
MAX_TEXTS = 128
"""Choices of all prompts of a request together."""
MAX_STOPS = 16
MAX_STOP_CHARACTERS = 256
MAX_MESSAGES = 4096
MAX_PARTS = 16_384
"""Parts of all messages together."""
MAX_INPUTS = 1024
MAX_PROMPT_TOKENS = 1 << 20
MAX_REPORTED_ERRORS = 3

TokenIds = Annotated[list[int], Field(min_length=1, fail_fast=True)]
TokenLists = Annotated[list[TokenIds], Field(min_length=1, fail_fast=True)]
Texts = Annotated[list[str], Field(min_length=1, fail_fast=True)]
Stop = Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARACTERS)]
Penalty = Annotated[float, Field(ge=-2, le=2)]
Unsupported = Mapping[str, tuple[Any, ...]]
"""Unsupported fields, each with the values that have no effect and are therefore allowed."""


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
        "echo": (False,), "suffix": ("",), "best_of": (1,), "logprobs": (), "logit_bias": ({},),
    }  # fmt: skip
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


class TextPart(BaseModel):
    """A part of a message's content; text is the only kind."""

    model_config = ConfigDict(strict=True)
    type: Annotated[str, Field(pattern="^text$")]
    text: str


class Message(BaseModel):
    model_config = ConfigDict(strict=True)
    role: Annotated[str, Field(pattern="^(system|developer|user|assistant|tool)$")]
    content: str | Annotated[list[TextPart], Field(fail_fast=True)]
    name: str | None = None

    def for_template(self) -> dict[str, str]:
        """The message in the form of chat templates."""
        text = self.content
        if not isinstance(text, str):
            text = "".join(part.text for part in text)
        return {"role": self.role, "content": text}


class ChatBody(GenerationBody):
    """`/openai/v1/chat/completions`."""

    unsupported: ClassVar[Unsupported] = {
        "tools": ([],), "functions": ([],), "tool_choice": ("none",), "function_call": ("none",),
        "response_format": ({"type": "text"},), "logprobs": (False,), "top_logprobs": (0,),
        "logit_bias": ({},), "modalities": (["text"],), "audio": (), "web_search_options": (),
    }  # fmt: skip
    max_items: ClassVar[Mapping[str, int]] = {"messages": MAX_MESSAGES, "stop": MAX_STOPS}
    messages: Annotated[list[Message], Field(min_length=1, fail_fast=True)]
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None

    @property
    def max_new_tokens(self) -> int | None:
        """The newer field takes precedence."""
        return self.max_completion_tokens or self.max_tokens


class EmbeddingBody(ModelBody):
    """`/openai/v1/embeddings`."""

    unsupported: ClassVar[Unsupported] = {"dimensions": ()}
    max_items: ClassVar[Mapping[str, int]] = {"input": MAX_PROMPT_TOKENS}
    input: str | TokenIds | Texts | TokenLists
    encoding_format: Annotated[str, Field(pattern="^(float|base64)$")] | None = None

    @property
    def inputs(self) -> list[str | list[int]]:
        return _texts_or_tokens(self.input)


Body = TypeVar("Body", bound=ModelBody)


def parse_openai_body(kind: type[Body], content: bytes) -> Body:
    """A checked body; raises InvalidField naming up to three mistakes."""
    document = parse_object(content)
    _check_lengths(kind, document)
    for field, neutral in kind.unsupported.items():
        value = document.get(field)
        if value is not None and value not in neutral:
            raise InvalidField(_unsupported(field, value, neutral), param=field)
    try:
        return kind.model_validate(document)
    except ValidationError as error:
        raise _invalid_field(error, document) from error


def _check_lengths(kind: type[ModelBody], document: Mapping[str, Any]) -> None:
    for field, allowed in kind.max_items.items():
        value = document.get(field)
        if isinstance(value, list) and len(value) > allowed:
            raise InvalidField(f"{field} may have {allowed} items, has {len(value)}", param=field)
    if kind is CompletionBody:
        _check_prompts(document.get("prompt"), document.get("n"))
    inputs = document.get("input")
    if kind is EmbeddingBody and isinstance(inputs, list):
        _check_inputs(inputs)
    messages = document.get("messages")
    if kind is ChatBody and isinstance(messages, list):
        parts = sum(map(_count_parts, messages))
        if parts > MAX_PARTS:
            raise InvalidField(
                f"all messages together may have {MAX_PARTS} parts, have {parts}", param="messages"
            )


def _check_inputs(inputs: list[Any]) -> None:
    if _is_several(inputs) and len(inputs) > MAX_INPUTS:
        raise InvalidField(f"input may have {MAX_INPUTS} items, has {len(inputs)}", param="input")


def _check_prompts(prompt: Any, choices: Any) -> None:
    if not isinstance(prompt, list) or not _is_several(prompt):
        return
    if len(prompt) > MAX_PROMPTS:
        raise InvalidField(
            f"a request may have {MAX_PROMPTS} prompts, has {len(prompt)}", param="prompt"
        )
    texts = len(prompt) * (choices if isinstance(choices, int) else 1)
    if texts > MAX_TEXTS:
        raise InvalidField(f"prompts times n may be {MAX_TEXTS} at most, was {texts}", param="n")


def _is_several(value: list[Any]) -> bool:
    """Whether it has texts or lists of tokens, in place of the tokens of one text."""
    return bool(value) and not isinstance(value[0], int)


def _count_parts(message: Any) -> int:
    content = message.get("content") if isinstance(message, dict) else None
    return len(content) if isinstance(content, list) else 0


def _unsupported(field: str, value: Any, neutral: tuple[Any, ...]) -> str:
    if not neutral:
        return f"{field!r} is not supported; omit it"
    allowed = " or ".join(map(repr, neutral))
    return f"{field!r} is not supported; omit it, or set it to {allowed}, was {shown(value)}"


def _invalid_field(error: ValidationError, document: Mapping[str, Any]) -> InvalidField:
    problems = error.errors(include_url=False, include_input=False)
    message = describe_errors(problems, document, limit=MAX_REPORTED_ERRORS)
    return InvalidField(message, param=first_field(problems[0]))
