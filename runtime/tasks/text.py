"""Text inputs and outputs: reads V1 and V2 bodies, tokenises texts and decodes tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from runtime.engines.networks.configuration import read_json
from runtime.errors import InvalidRequest, ModelInvalid
from runtime.tasks.tensor_batching import PaddedBatching, TensorRule
from runtime.wire.tensors import (
    BYTES,
    Tensor,
    bytes_tensor,
    check_item_count,
    numeric_tensor,
    single_input,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

DEFAULT_MAX_TOKENS = 512
"""Texts are truncated to this many tokens if the model's files set no limit."""

VOCABULARY_FILES = (
    "tokenizer.json",
    "vocab.txt",
    "vocab.json",
    "spiece.model",
    "sentencepiece.bpe.model",
    "tokenizer.model",
)

TEXT_TYPE: dict[str, Any] = {"name": "text", "datatype": BYTES, "shape": [-1]}


class TextInputs:
    """Base class of processors that take texts."""

    def __init__(self, encoder: TextEncoder) -> None:
        self.encoder = encoder

    def read_instances(self, instances: Sequence[Any]) -> list[str]:
        """Read strings, or objects with a string `text`; raises InvalidRequest."""
        check_item_count(len(instances))
        texts = []
        for index, instance in enumerate(instances):
            text = instance.get("text") if isinstance(instance, dict) else instance
            if not isinstance(text, str):
                raise InvalidRequest(
                    f"instances[{index}] must be a string or an object with a string 'text',"
                    f" was {_describe(instance)}"
                )
            texts.append(text)
        return texts

    def read_tensors(self, tensors: Sequence[Tensor]) -> list[str]:
        """Read one tensor of UTF-8 strings; raises InvalidRequest."""
        tensor = single_input(tensors, "text")
        if tensor.datatype != BYTES:
            raise InvalidRequest(f"input {tensor.name!r} must be BYTES, was {tensor.datatype}")
        check_item_count(tensor.data.size)
        try:
            return [value.decode("utf-8") for value in tensor.data.ravel()]
        except UnicodeDecodeError as error:
            raise InvalidRequest(f"input {tensor.name!r} must hold UTF-8: {error}") from error

    def preprocess(self, items: Sequence[str]) -> tuple[Tensor, ...]:
        return self.encoder.encode(items)

    def input_types(self) -> list[dict[str, Any]]:
        return [TEXT_TYPE]


class TextOutputs:
    """Base class of processors whose networks generate tokens."""

    encoder: TextEncoder

    def postprocess(self, outputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        token_ids = outputs[0].data.astype(np.int64, copy=False)
        texts = self.encoder.tokenizer.batch_decode(token_ids, skip_special_tokens=True)
        return (bytes_tensor("text", [text.encode() for text in texts]),)

    def predictions(self, outputs: Sequence[Tensor]) -> list[Any]:
        return [value.decode() for value in outputs[0].data]

    def output_types(self) -> list[dict[str, Any]]:
        return [TEXT_TYPE]


class TextEncoder:
    def __init__(self, folder: Path, config: PretrainedConfig, *, takes_types: bool = True) -> None:
        """Load the tokenizer; raises ModelInvalid.

        `takes_types` is False for networks without token types.
        """
        from transformers import AutoTokenizer

        # Without these files, transformers returns a tokenizer with only five special tokens.
        if not any((folder / name).exists() for name in VOCABULARY_FILES):
            raise ModelInvalid(f"the model has no tokenizer: none of {', '.join(VOCABULARY_FILES)}")
        try:
            self.tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
                folder, config=config, trust_remote_code=False, local_files_only=True
            )
        except BaseException as error:  # a panic in Rust is not an Exception
            raise ModelInvalid(f"the model's tokenizer cannot be used: {error}") from error
        limit = min(
            self.tokenizer.model_max_length,
            getattr(config, "max_position_embeddings", None) or DEFAULT_MAX_TOKENS,
        )
        self.max_tokens = int(min(limit, 100_000))
        self._vocabulary: int = config.vocab_size
        self._token_types: int = getattr(config, "type_vocab_size", 2)
        names = ["input_ids", "attention_mask"]
        if takes_types and "token_type_ids" in self.tokenizer.model_input_names:
            names.append("token_type_ids")
        self._names = tuple(names)

    def batching(self, *, eos_ids: frozenset[int] = frozenset()) -> PaddedBatching:
        """Batching with the tokenizer's padding, on the side where the tokenizer pads."""
        padding = self.tokenizer.pad_token_id or 0
        rules = {
            "input_ids": TensorRule("INT64", padding=padding, upper_bound=self._vocabulary),
            "attention_mask": TensorRule("INT64", upper_bound=2),
        }
        if "token_type_ids" in self._names:
            rules["token_type_ids"] = TensorRule("INT64", upper_bound=self._token_types)
        return PaddedBatching(
            rules,
            required=("input_ids", "attention_mask"),
            max_tokens=self.max_tokens,
            pads_left=self.tokenizer.padding_side == "left",
            eos_ids=eos_ids,
        )

    def encode(self, texts: Sequence[str], max_tokens: int | None = None) -> tuple[Tensor, ...]:
        """Token tensors, padded to the longest text and truncated."""
        encoded = self.tokenizer(
            list(texts),
            padding=True,
            truncation=True,
            max_length=max_tokens or self.max_tokens,
            return_tensors="np",
        )
        return tuple(
            numeric_tensor(name, np.ascontiguousarray(encoded[name], dtype=np.int64))
            for name in self._names
        )


def torch_inputs(
    inputs: Sequence[Tensor], network: PreTrainedModel, required: str = "input_ids"
) -> dict[str, torch.Tensor]:
    """The network's keyword arguments on its device; raises InvalidRequest."""
    arguments = {}
    for tensor in inputs:
        if tensor.datatype == BYTES:
            raise InvalidRequest(f"tensor {tensor.name!r} must be numeric, was BYTES")
        array = tensor.data if tensor.data.flags.writeable else tensor.data.copy()
        arguments[tensor.name] = torch.from_numpy(array).to(network.device)
    if required not in arguments:
        raise InvalidRequest(f"inference needs a tensor {required!r}, got {sorted(arguments)}")
    return arguments


def _describe(value: Any) -> str:
    if isinstance(value, dict):
        return f"an object with {sorted(map(str, value))[:4]}"
    return f"{type(value).__name__} {str(value)[:40]!r}"


def eos_ids(folder: Path, config: PretrainedConfig) -> frozenset[int]:
    """Tokens that end a generated row: from generation_config.json, else from the configuration."""
    path = folder / "generation_config.json"
    stored = read_json(path).get("eos_token_id") if path.exists() else None
    found = stored if stored is not None else getattr(config, "eos_token_id", None)
    return frozenset([found] if isinstance(found, int) else found or ())
