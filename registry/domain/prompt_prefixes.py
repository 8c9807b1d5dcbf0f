"""Which pods have computed the beginning of a prompt: by model, the blocks that were sent to them.

Engines keep what they compute of prompts in blocks of 16 tokens, each known by a hash of itself and
all before it (vLLM's automatic prefix caching). As in llm-d, a pod is taken to have what this
process has sent there lately. Pure.
"""

from bisect import bisect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

BLOCK_TOKENS: Final = 16
_KEPT_TOKENS: Final = 1 << 19
"""Of one model at one pod; llm-d assumes half a million as well."""
_MAX_BLOCKS: Final = 1 << 18
"""Of all models and pods: 25 MB."""


@dataclass(frozen=True, slots=True)
class Prompt:
    blocks: Sequence[int]
    """Hashes of its first blocks, each with those before it."""
    tokens: int
    """Of the whole prompt, about."""


class KeptBlocks(dict[int, None]):
    """The blocks of the latest prompts; of the oldest one its end is forgotten first."""

    def held(self, blocks: Sequence[int]) -> int:
        """How many of the first blocks are here: with a block all before it."""
        return bisect(blocks, False, key=lambda block: block not in self)

    def keep(self, blocks: Sequence[int], at_most: int) -> None:
        for block in reversed(blocks):
            self.pop(block, None)
            self[block] = None
        for block in list(islice(self, max(0, len(self) - at_most))):
            del self[block]


class PromptPrefixes:
    """Bounded: what was sent longest ago is forgotten."""

    def __init__(self) -> None:
        self.block_tokens = BLOCK_TOKENS
        self.on_sent: Callable[[str, int, int], None] = lambda *_: None
        """Called with a model's key, a prompt's tokens, and how many of these its pod has."""
        self._by_model: dict[str, dict[str, KeptBlocks]] = {}
        self._used: dict[tuple[str, str], None] = {}
        """Model and pod, the last one used at the end."""
        self._total = 0

    def find(self, key: str, prompt: Prompt) -> dict[str, float] | None:
        """The share of the prompt by pod that has some of it; None: no pod has."""
        found = {
            pod: self._share(held, prompt)
            for pod, kept in self._by_model.get(key, {}).items()
            if (held := kept.held(prompt.blocks))
        }
        return found or None

    def record(self, key: str, pod: str, prompt: Prompt) -> None:
        """The prompt is sent to the pod, which then has it."""
        kept = self._by_model.setdefault(key, {}).setdefault(pod, KeptBlocks())
        share = self._share(kept.held(prompt.blocks), prompt)
        self.on_sent(key, prompt.tokens, round(share * prompt.tokens))
        self._total -= len(kept)
        kept.keep(prompt.blocks, _KEPT_TOKENS // self.block_tokens)
        self._total += len(kept)
        self._used.pop((key, pod), None)
        self._used[key, pod] = None
        while self._total > _MAX_BLOCKS:
            self.forget(*next(iter(self._used)))

    def forget(self, key: str, pod: str) -> None:
        """The model is no longer on the pod's device, or the pod is gone."""
        kept = self._by_model.get(key, {}).pop(pod, None)
        if kept is not None:
            del self._used[key, pod]
            self._total -= len(kept)

    def clear(self) -> None:
        """Forget all: pods may have unloaded models unnoticed."""
        self._by_model, self._used, self._total = {}, {}, 0

    def _share(self, blocks: int, prompt: Prompt) -> float:
        return min(1.0, blocks * self.block_tokens / max(1, prompt.tokens))
