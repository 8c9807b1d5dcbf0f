"""The interface of generation engines: one engine per model, several prompts at once.

The runtime uses engines through this interface only. `transformers_engine` implements it with
transformers; another library's engine can replace it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence


class Finish(StrEnum):
    """Why a generation ended, with OpenAI's values."""

    STOP = "stop"
    """The model generated an end token, or a stop string."""
    LENGTH = "length"
    """The requested number of tokens was reached."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """Sampling parameters, with OpenAI's names and ranges."""

    max_tokens: int
    seed: int
    temperature: float = 1.0
    """0 selects the likeliest token."""
    top_p: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0


@dataclass(frozen=True, slots=True)
class TokenChunk:
    """New tokens; `finish` is None until the last chunk."""

    token_ids: tuple[int, ...]
    finish: Finish | None


class GenerationEngine(Protocol):
    """One model's generation. All methods are called on the event loop."""

    context_tokens: int
    """Maximum number of tokens of a prompt and its output together."""

    def generate(
        self, prompt_ids: Sequence[int], sampling: Sampling
    ) -> AsyncGenerator[TokenChunk, None]:
        """New tokens as they are generated; closing the generator stops at the next token.

        Raises:
            InferenceFailed: the network or the engine failed.
            NoRoomToInfer: the device had no memory for a step.
            QueueFull: the device's queue is full.
        """

    def close(self) -> None:
        """Release the network and all memory."""
