"""Messages of a conversation, as clients keep them, and as chat templates take them."""

from __future__ import annotations

from typing import Annotated, Any

import orjson
from pydantic import BaseModel, ConfigDict, Field, model_validator

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
