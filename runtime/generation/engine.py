"""The interface of generation engines, and the text that their tokens make.

One engine per model, several prompts at once. `transformers_engine` computes the tokens of several
texts together, `sequential_engine` those of one text after the other.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

REPLACEMENT = "\ufffd"
"""Decoded from bytes that are a partial character."""
MAX_HELD_TOKENS = 16
"""Tokens that end in a partial character are held back for at most so many tokens."""
LEAST_PROMPT_TOKENS = 4
MOST_PROMPT_TOKENS = 24
"""Of a prompt's end, behind which new tokens are decoded, as vLLM does."""


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


class TextStream:
    """One choice's text: no partial characters, and an end at the first stop string.

    Decoding a token takes about 20 us, too little to use a thread for.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        stops: Sequence[str],
        *,
        prompt_ids: Sequence[int] = (),
        keeps_stop: bool = False,
        keeps_special: bool = False,
    ) -> None:
        """`prompt_ids`: what the text continues; empty for a text that stands by itself.

        `keeps_stop`: the text ends with the stop string, not before it. `keeps_special`: special
        tokens are part of the text.
        """
        self._tokenizer = tokenizer
        self._stops = tuple(stops)
        self._keeps_stop = keeps_stop
        self._skips_special = not keeps_special
        self._ids: list[int] = self._end_of(prompt_ids)
        self._context_start = 0
        """Tokens from here on are decoded again with new ones: some depend on their neighbour."""
        self._prompt_tokens = self._returned = len(self._ids)
        """Number of tokens that were returned as text."""
        self._held = ""
        """Text that may be the beginning of a stop string."""
        self.is_stopped = False
        """Whether a stop string ended the text."""

    def push(self, token_ids: Sequence[int]) -> str:
        """The text that further tokens cannot change; it may be empty."""
        self._ids.extend(token_ids)
        return self._up_to_stop(self._new_text(is_end=False), is_end=False)

    def finish(self) -> str:
        """The held text, after the last token."""
        return self._up_to_stop(self._new_text(is_end=True), is_end=True)

    def _end_of(self, prompt_ids: Sequence[int]) -> list[int]:
        """The prompt's last tokens, from a whole character on."""
        for count in range(LEAST_PROMPT_TOKENS, MOST_PROMPT_TOKENS):
            tail = list(prompt_ids[-count:])
            if len(tail) < count or not self._decode(tail).startswith(REPLACEMENT):
                break
        return tail

    def _new_text(self, *, is_end: bool) -> str:
        known = self._decode(self._ids[self._context_start : self._returned])
        if self._returned == self._prompt_tokens:  # the prompt may end within a character
            known = known.rstrip(REPLACEMENT)
        text = self._decode(self._ids[self._context_start :])
        may_hold = len(self._ids) - self._returned < MAX_HELD_TOKENS
        if text.endswith(REPLACEMENT) and may_hold and not is_end:
            return ""
        self._context_start, self._returned = self._returned, len(self._ids)
        return text[len(known) :]

    def _decode(self, token_ids: Sequence[int]) -> str:
        text: str = self._tokenizer.decode(token_ids, skip_special_tokens=self._skips_special)
        return text

    def _up_to_stop(self, text: str, *, is_end: bool) -> str:
        if self.is_stopped:
            return ""
        text = self._held + text
        places = [(at, len(stop)) for stop in self._stops if (at := text.find(stop)) >= 0]
        if places:
            self.is_stopped = True
            self._held = ""
            at, length = min(places)
            return text[: at + length if self._keeps_stop else at]
        held = 0 if is_end else _overlap(text, self._stops)
        self._held = text[len(text) - held :]
        return text[: len(text) - held]


def _overlap(text: str, stops: Sequence[str]) -> int:
    """Length of the longest end of `text` that begins a stop string."""
    longest = max((len(stop) - 1 for stop in stops), default=0)
    for length in range(min(longest, len(text)), 0, -1):
        if any(stop.startswith(text[-length:]) for stop in stops):
            return length
    return 0
