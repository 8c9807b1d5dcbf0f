"""What trials of padding share: which networks need none, and which results are equal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

_BEST_TOKENS: Final = ("index_topk", "indexer_budget")
"""Fields of networks that attend to so many tokens only: in longer texts padding is among them."""
_OWN_PADDING: Final = ("cpmant",)
"""Architectures that know padding by token 0 in place of a mask."""


def tolerance(network: PreTrainedModel) -> float:
    """Of results, relative to their size: rounding in 32 bits makes 1e-5, padding 1e-2."""
    return 1e-3 if network.dtype.itemsize >= 4 else 0.05


def is_never_padded(config: PretrainedConfig) -> bool:
    """Whether texts are not padded, since no short trial shows what that does to them."""
    text = config.get_text_config()
    chooses = any(getattr(text, name, None) for name in _BEST_TOKENS)
    return chooses or text.model_type in _OWN_PADDING
