"""Which pods have computed the beginning of a prompt: by model, the blocks that were sent to them.

Engines keep what they compute of prompts in blocks of 16 tokens, each known by a hash of itself and
all before it (vLLM's automatic prefix caching). As in llm-d, a pod is taken to have what this
process has sent there lately. Pure.
"""

from bisect import bisect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

BLOCK_TOKENS: Final = 16
_KEPT_TOKENS: Final = 1 << 19
"""Of one model at one pod; llm-d assumes half a million as well."""
_MAX_BLOCKS: Final = 1 << 18
"""Of all models and pods: 25 MB."""
_NEW_TOKENS: Final = ("max_completion_tokens", "max_tokens", "max_output_tokens")


@dataclass(frozen=True, slots=True)
class Prompt:
    blocks: Sequence[int]
    """Hashes of its first blocks, each with those before it."""
    tokens: int
    new_tokens: int = 0
    """That may be generated; 0: the request sets no limit."""


def max_new_tokens(body: Mapping[str, Any]) -> int:
    """The limit in a body of OpenAI's protocol; 0: there is none."""
    found = [body[name] for name in _NEW_TOKENS if isinstance(body.get(name), int)]
    return max(0, found[0]) if found else 0


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
        self._kept: dict[tuple[str, str], KeptBlocks] = {}
        """By model and pod, the last one used at the end."""
        self._total = 0

    def find(self, key: str, prompt: Prompt, pods: Iterable[str]) -> dict[str, float]:
        """The share of the prompt by those of the pods that have some of it."""
        shares = {pod: self._share(key, pod, prompt) for pod in pods}
        return {pod: share for pod, share in shares.items() if share}

    def record(self, key: str, pod: str, prompt: Prompt) -> None:
        """The prompt is sent to the pod, which then has it."""
        self.on_sent(key, prompt.tokens, round(self._share(key, pod, prompt) * prompt.tokens))
        kept = self._kept[key, pod] = self._kept.pop((key, pod), KeptBlocks())
        self._total -= len(kept)
        kept.keep(prompt.blocks, _KEPT_TOKENS // self.block_tokens)
        self._total += len(kept)
        while self._total > _MAX_BLOCKS:
            self.forget(*next(iter(self._kept)))

    def forget(self, key: str, pod: str) -> None:
        """The model is no longer on the pod's device, or the pod is gone."""
        self._total -= len(self._kept.pop((key, pod), ()))

    def clear(self) -> None:
        """Forget all: pods may have unloaded models unnoticed."""
        self._kept, self._total = {}, 0

    def _share(self, key: str, pod: str, prompt: Prompt) -> float:
        kept = self._kept.get((key, pod))
        held = kept.held(prompt.blocks) if kept else 0
        return min(1.0, held * self.block_tokens / max(1, prompt.tokens))
