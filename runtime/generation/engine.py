"""The interface of generation engines: one engine per model, several prompts at once.

The runtime uses engines through this interface only. `transformers_engine` computes the tokens of
several texts together, `sequential_engine` those of one text after the other.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol


class Finish(StrEnum):
    """Why a generation ended, with OpenAI's values."""

    STOP = "stop"
    """The model generated an end token, or a stop string."""
    LENGTH = "length"
    """The requested number of tokens was reached."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """Sampling parameters, with OpenAI's and vLLM's names and ranges."""

    max_tokens: int
    seed: int
    temperature: float = 1.0
    """0 selects the likeliest token."""
    top_p: float = 1.0
    top_k: int = 0
    """0: all tokens."""
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    """Tokens, and what is added to their scores."""
    min_tokens: int = 0
    """Before that many tokens no end token is generated."""
    end_ids: frozenset[int] = frozenset()
    """Tokens that end the text."""


@dataclass(frozen=True, slots=True)
class SamplingDefaults:
    """What a model's generation_config.json says of sampling; None: nothing."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    min_tokens: int | None = None
    stops: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TokenChunk:
    """New tokens; `finish` is None until the last chunk."""

    token_ids: tuple[int, ...]
    finish: Finish | None


class GenerationEngine(Protocol):
    """One model's generation. All methods are called on the event loop."""

    context_tokens: int
    """Maximum number of tokens of a prompt and its output together."""
    continues_prompt: bool
    """Whether the output continues the prompt; else a decoder begins a text of its own, and prompt
    and output have a context each."""
    defaults: SamplingDefaults

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


def finish_of(token_ids: Sequence[int], sampling: Sampling) -> Finish:
    """Why a text with these last tokens ended."""
    ended = bool(token_ids) and token_ids[-1] in sampling.end_ids
    return Finish.STOP if ended else Finish.LENGTH
