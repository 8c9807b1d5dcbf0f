"""OpenAI request bodies: what of them is understood, in which range, and what is refused.

Fields that would change the answer and are not offered are refused; others are passed over, as
OpenAI's own servers do. Checked with pydantic; every mistake becomes an `InvalidField`.
"""

from __future__ import annotations

import reprlib
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from runtime.engines.images.image_requests import MOST_GUIDANCE, MOST_IMAGES, MOST_SEED, MOST_STEPS
from runtime.errors import InvalidRequest
from runtime.wire.v2 import read_object

if TYPE_CHECKING:
    from collections.abc import Mapping

MOST_CHOICES = 16
MOST_STOPS = 16
MOST_STOP_CHARACTERS = 256
MOST_MESSAGES = 4096
MOST_INPUTS = 1024
MOST_ERRORS = 3

TokenIds = Annotated[list[int], Field(min_length=1)]
Stop = Annotated[str, Field(min_length=1, max_length=MOST_STOP_CHARACTERS)]
Penalty = Annotated[float, Field(ge=-2, le=2)]


class InvalidField(InvalidRequest):
    """One field of an OpenAI body is wrong; `param` names it."""

    def __init__(self, message: str, *, param: str | None, code: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        self.code = code


class StreamOptions(BaseModel):
    """How a stream is written."""

    model_config = ConfigDict(strict=True)
    include_usage: bool | None = None


class ModelBody(BaseModel):
    """What all bodies have; null means the default everywhere."""

    model_config = ConfigDict(strict=True)
    model: Annotated[str, Field(min_length=1)]


class GenerationBody(ModelBody):
    """What completions and chat have in common."""

    max_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    n: Annotated[int, Field(ge=1, le=MOST_CHOICES)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    stop: Stop | Annotated[list[Stop], Field(max_length=MOST_STOPS)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    @property
    def stops(self) -> tuple[str, ...]:
        """The stop strings."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    @property
    def wants_usage(self) -> bool:
        """Whether a stream is to end with its usage."""
        return bool(self.stream_options and self.stream_options.include_usage)

    @property
    def max_new_tokens(self) -> int | None:
        """The most new tokens that are asked for."""
        return self.max_tokens


class CompletionBody(GenerationBody):
    """`/openai/v1/completions`."""

    prompt: str | TokenIds | Annotated[list[str], Field(min_length=1, max_length=1)]


class TextPart(BaseModel):
    """A piece of a message's content; text is the only kind."""

    model_config = ConfigDict(strict=True)
    type: Annotated[str, Field(pattern="^text$")]
    text: str


class Message(BaseModel):
    """One message of a conversation."""

    model_config = ConfigDict(strict=True)
    role: Annotated[str, Field(pattern="^(system|developer|user|assistant|tool)$")]
    content: str | list[TextPart]
    name: str | None = None

    def for_template(self) -> dict[str, str]:
        """As chat templates expect it."""
        text = self.content
        if not isinstance(text, str):
            text = "".join(part.text for part in text)
        return {"role": self.role, "content": text}


class ChatBody(GenerationBody):
    """`/openai/v1/chat/completions`."""

    messages: Annotated[list[Message], Field(min_length=1, max_length=MOST_MESSAGES)]
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None

    @property
    def max_new_tokens(self) -> int | None:
        """The newer field before the older."""
        return self.max_completion_tokens or self.max_tokens


class EmbeddingBody(ModelBody):
    """`/openai/v1/embeddings`."""

    input: str | Annotated[list[str], Field(min_length=1, max_length=MOST_INPUTS)]
    encoding_format: Annotated[str, Field(pattern="^(float|base64)$")] | None = None

    @property
    def texts(self) -> list[str]:
        """One text per embedding."""
        return [self.input] if isinstance(self.input, str) else self.input


class ImageBody(ModelBody):
    """`/openai/v1/images/generations`; below `size` are fields that OpenAI has not."""

    prompt: str
    n: Annotated[int, Field(ge=1, le=MOST_IMAGES)] | None = None
    size: Annotated[str, Field(pattern=r"^(auto|[0-9]{1,4}x[0-9]{1,4})$")] | None = None
    negative_prompt: str | None = None
    seed: Annotated[int, Field(ge=0, le=MOST_SEED)] | None = None
    num_inference_steps: Annotated[int, Field(ge=1, le=MOST_STEPS)] | None = None
    guidance_scale: Annotated[float, Field(ge=0, le=MOST_GUIDANCE)] | None = None


_NOT_OFFERED: Mapping[type[ModelBody], Mapping[str, tuple[Any, ...]]] = {
    CompletionBody: {
        "echo": (False,), "suffix": ("",), "best_of": (1,), "logprobs": (), "logit_bias": ({},),
    },
    ChatBody: {
        "tools": ([],), "functions": ([],), "tool_choice": ("none",), "function_call": ("none",),
        "response_format": ({"type": "text"},), "logprobs": (False,), "top_logprobs": (0,),
        "logit_bias": ({},), "modalities": (["text"],), "audio": (), "web_search_options": (),
    },
    EmbeddingBody: {"dimensions": ()},
    ImageBody: {
        "response_format": ("b64_json",), "stream": (False,), "partial_images": (0,),
        "output_format": ("png",), "output_compression": (100,), "background": ("auto", "opaque"),
        "quality": ("auto", "standard"), "style": (),
    },
}  # fmt: skip
"""Fields that would change the answer, with the values that ask for nothing."""

Body = TypeVar("Body", bound=ModelBody)


def read_openai_body(kind: type[Body], content: bytes) -> Body:
    """A checked body; raises InvalidField naming up to three mistakes."""
    document = read_object(content)
    for field, neutral in _NOT_OFFERED[kind].items():
        value = document.get(field)
        if value is not None and value not in neutral:
            raise InvalidField(_not_offered(field, value, neutral), param=field)
    try:
        return kind.model_validate(document)
    except ValidationError as error:
        raise _as_field(error) from error


def _not_offered(field: str, value: Any, neutral: tuple[Any, ...]) -> str:
    if not neutral:
        return f"{field!r} is not offered; leave it out"
    allowed = " or ".join(map(repr, neutral))
    return f"{field!r} is not offered; leave it out, or say {allowed}, was {reprlib.repr(value)}"


def _as_field(error: ValidationError) -> InvalidField:
    problems = error.errors(include_url=False, include_context=False)
    lines = [f"{_path(problem)}: {problem['msg']}" for problem in problems[:MOST_ERRORS]]
    return InvalidField("; ".join(lines), param=str(problems[0]["loc"][0]))


def _path(problem: Any) -> str:
    return ".".join(str(part) for part in problem["loc"])
