"""What makes tokens: an engine serves one model and takes several prompts at once.

The rest of the runtime knows engines by this interface alone. The engine of transformers is
`transformers_engine`; one of another library takes its place by offering the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence


class Finish(StrEnum):
    """Why an answer ended, in OpenAI's words."""

    STOP = "stop"
    """The model ended it, or a stop string did."""
    LENGTH = "length"
    """The most tokens that were asked for are made."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the next token is chosen, with OpenAI's parameters and ranges."""

    max_tokens: int
    seed: int
    temperature: float = 1.0
    """0 takes the likeliest token."""
    top_p: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0


@dataclass(frozen=True, slots=True)
class TokenChunk:
    """Tokens that are new, and why there will be no more; None: there will be."""

    token_ids: tuple[int, ...]
    finish: Finish | None


class GenerationEngine(Protocol):
    """One model's generation. All methods belong to the event loop."""

    context_tokens: int
    """Most tokens of a prompt and its answer together."""

    def generate(
        self, prompt_ids: Sequence[int], sampling: Sampling
    ) -> AsyncGenerator[TokenChunk, None]:
        """New tokens as they are made; closing the generator ends the work at the next token.

        Raises:
            InferenceFailed: the network or the engine failed.
            NoRoomToInfer: the device had no room for a step.
            QueueFull: too much waits for the device.
        """

    def close(self) -> None:
        """Let go of the network and of all memory."""
