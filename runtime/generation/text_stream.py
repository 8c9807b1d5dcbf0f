"""Text from tokens as they come: no half characters, and an end at the first stop string."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transformers import PreTrainedTokenizerBase

HALF = "\ufffd"
"""What bytes that are no whole character decode to."""
MOST_HELD = 16
"""Tokens that end in half a character wait for the rest no longer than this."""


class TextStream:
    """One answer's text. Decoding one token takes some 20 us, too little to leave the loop for."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, stops: Sequence[str]) -> None:
        self._tokenizer = tokenizer
        self._stops = tuple(stops)
        self._ids: list[int] = []
        self._before = 0
        """Tokens from here on are decoded again for what follows: some join with a neighbour."""
        self._told = 0
        """Tokens before this have been given out as text."""
        self._held = ""
        """Text that may be the beginning of a stop string."""
        self.is_stopped = False
        """Whether a stop string came; nothing follows then."""

    def push(self, token_ids: Sequence[int]) -> str:
        """The text that is certain after these tokens; it may be empty."""
        self._ids.extend(token_ids)
        return self._give(self._decoded(is_end=False), is_end=False)

    def finish(self) -> str:
        """What was held back, when no more tokens come."""
        return self._give(self._decoded(is_end=True), is_end=True)

    def _decoded(self, *, is_end: bool) -> str:
        known = self._decode(self._ids[self._before : self._told])
        text = self._decode(self._ids[self._before :])
        is_waiting = len(self._ids) - self._told < MOST_HELD
        if text.endswith(HALF) and is_waiting and not is_end:
            return ""
        self._before, self._told = self._told, len(self._ids)
        return text[len(known) :]

    def _decode(self, token_ids: Sequence[int]) -> str:
        text: str = self._tokenizer.decode(token_ids, skip_special_tokens=True)
        return text

    def _give(self, text: str, *, is_end: bool) -> str:
        if self.is_stopped:
            return ""
        text = self._held + text
        ends = [at for stop in self._stops if (at := text.find(stop)) >= 0]
        if ends:
            self.is_stopped = True
            self._held = ""
            return text[: min(ends)]
        kept = 0 if is_end else _overlap(text, self._stops)
        self._held = text[len(text) - kept :]
        return text[: len(text) - kept]


def _overlap(text: str, stops: Sequence[str]) -> int:
    """Length of the longest end of `text` that begins a stop string."""
    longest = max((len(stop) - 1 for stop in stops), default=0)
    for length in range(min(longest, len(text)), 0, -1):
        if any(stop.startswith(text[-length:]) for stop in stops):
            return length
    return 0
