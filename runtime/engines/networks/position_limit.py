"""How long a network's texts may be, asked of the network itself, and which need no padding.

A table of positions has a row for each, but for those that its architecture leaves out: RoBERTa's
and its kin number positions from `padding_idx + 1` on, BART's from an offset. Networks with
relative or rotary positions have no table; the configuration alone says how long texts may be.
"""

from __future__ import annotations

import copy
import logging
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import torch

from runtime.engines.networks.configuration import without_memory

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel


logger = logging.getLogger(__name__)

_LIMIT_FIELDS: Final = (
    "max_position_embeddings", "n_positions", "max_encoder_position_embeddings", "max_seq_len",
    "seq_length", "max_source_positions", "max_sequence_length", "n_ctx",
)  # fmt: skip
"""Of configurations, in the order in which they are asked."""
_TABLES: Final = frozenset(
    {"position_embeddings", "position_embedding", "embed_positions", "embed_position", "wpe",
     "positional_embedding", "positions_embed", "pos_embedding"}
)  # fmt: skip
"""Names of the modules that hold a table of positions."""
_OTHER_PARTS: Final = ("vision", "visual", "image", "audio")


def position_limit(config: PretrainedConfig) -> int | None:
    """Most tokens of a text; None: any number."""
    return _least(_declared(config), _tables(config)[0])


def output_limit(config: PretrainedConfig) -> int | None:
    """Most tokens that a decoder generates after an encoder; None: any number."""
    declared = getattr(config, "max_decoder_position_embeddings", None) or _declared(config)
    return _least(declared, _tables(config)[1])


def _declared(config: PretrainedConfig) -> int | None:
    values = (getattr(_text_part(config), name, None) for name in _LIMIT_FIELDS)
    return next((each for each in values if isinstance(each, int) and each > 0), None)


def _text_part(config: PretrainedConfig) -> PretrainedConfig:
    try:
        return config.get_text_config()
    except ValueError:  # it has several
        return config


@dataclass(frozen=True, slots=True)
class _Architecture:
    """A configuration, equal to others with the same fields."""

    fields: str
    config: PretrainedConfig = field(compare=False)


def _tables(config: PretrainedConfig) -> tuple[int | None, int | None]:
    """Positions of texts, and of a decoder after an encoder."""
    text = _text_part(config)
    return _measured(_Architecture(text.to_json_string(use_diff=False), text))


@lru_cache(maxsize=64)
def _measured(architecture: _Architecture) -> tuple[int | None, int | None]:
    network = _without_weights(architecture.config)
    if network is None:
        return None, None
    texts: list[int] = []
    outputs: list[int] = []
    for name, module in network.named_modules():
        parts = name.split(".")
        is_text = not any(word in part for part in parts for word in _OTHER_PARTS)
        if parts[-1] in _TABLES and is_text and (count := _positions(module)) is not None:
            is_output = network.config.is_encoder_decoder and "decoder" in parts
            (outputs if is_output else texts).append(count)
    return min(texts, default=None), min(outputs, default=None)


def _positions(table: Any) -> int | None:
    weight = getattr(table, "weight", None)
    if not isinstance(weight, torch.Tensor) or weight.dim() != 2:
        return None
    is_own_kind = isinstance(table, torch.nn.Embedding) and type(table) is not torch.nn.Embedding
    if is_own_kind:  # it numbers positions itself
        return int(weight.shape[0] - getattr(table, "offset", 0))
    padding = getattr(table, "padding_idx", None)
    return int(weight.shape[0] - (0 if padding is None else padding + 1))


def _without_weights(config: PretrainedConfig) -> PreTrainedModel | None:
    """The network, with a single layer if it can have one; None if none can be built."""
    from transformers import AutoModel

    for layers in (1, None):
        part = copy.deepcopy(config)
        try:
            if layers is not None:
                part.num_hidden_layers = layers
            with without_memory("no network can be built"):
                return AutoModel.from_config(part, dtype=None, trust_remote_code=False)
        except Exception:  # architectures check their configuration in different ways
            logger.debug("no network to find its positions by", exc_info=True)
    return None


def _least(*limits: int | None) -> int | None:
    return min((each for each in limits if each is not None), default=None)


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
