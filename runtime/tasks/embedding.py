"""Text embedding: a vector of each text, as the model's files for sentence-transformers say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, assert_never

import numpy as np
import torch

from common.inference_protocol.tensors import Tensor, named_arrays, numeric_tensor
from registry.domain.model import Answers
from runtime.device.device_tensor import DeviceTensor, torch_inputs
from runtime.errors import ModelInvalid
from runtime.tasks import kserve_answers
from runtime.tasks.sentence_modules import Dense, Normalize, SentenceModules, read_modules
from runtime.tasks.tensor_batching import TensorRule
from runtime.tasks.text import TextInputs, TextModel

if TYPE_CHECKING:
    from transformers import PreTrainedModel


PROMPT_TOKENS: Final = "prompt_tokens"
"""Tensor with the number of each text's first tokens that are not pooled; absent: none."""


def pool(
    hidden: torch.Tensor,
    mask: torch.Tensor,
    modes: Sequence[str],
    left_out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Vectors `[rows, modes x size]` of `hidden` `[rows, tokens, size]`; `mask`: of its tokens.

    `left_out`: how many tokens at each text's beginning are not pooled, if it has more.
    """
    kept = mask
    if left_out is not None:
        rest = mask * (mask.cumsum(1) > left_out.unsqueeze(1))
        kept = torch.where(rest.any(dim=1, keepdim=True), rest, mask)
    parts = [_pooled(hidden, kept, mask, mode) for mode in modes]
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)


def _pooled(
    hidden: torch.Tensor, mask: torch.Tensor, whole: torch.Tensor, mode: str
) -> torch.Tensor:
    weights = mask.unsqueeze(-1).to(hidden.dtype)
    match mode:
        case "cls":
            return _at(hidden, mask.int().argmax(dim=1))
        case "lasttoken":
            return _at(hidden, mask.shape[1] - 1 - mask.int().flip(1).argmax(dim=1))
        case "max":
            return hidden.masked_fill(weights == 0, float("-inf")).max(dim=1).values
        case "weightedmean":  # by a token's place in its text
            weights = weights * whole.cumsum(1).unsqueeze(-1).to(hidden.dtype)
            return (hidden * weights).sum(1) / weights.sum(1).clamp(min=1e-9)
        case "mean_sqrt_len_tokens":
            return (hidden * weights).sum(1) / weights.sum(1).clamp(min=1e-9).sqrt()
        case _:
            return (hidden * weights).sum(1) / weights.sum(1).clamp(min=1e-9)


def _at(hidden: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    return hidden[torch.arange(len(hidden), device=hidden.device), positions]


class Steps:
    """The modules after the pooling, with their weights."""

    def __init__(self, modules: SentenceModules) -> None:
        """Raises ModelInvalid."""
        self._steps = [_linear(step) if isinstance(step, Dense) else step for step in modules.steps]

    def apply(self, vectors: torch.Tensor) -> torch.Tensor:
        for index, step in enumerate(self._steps):
            match step:
                case Normalize():
                    vectors = vectors / vectors.norm(dim=1, keepdim=True).clamp(min=1e-12)
                case torch.nn.Module():
                    if next(step.parameters()).device != vectors.device:
                        self._steps[index] = step = step.to(vectors.device)
                    vectors = step(vectors)
                case _:
                    assert_never(step)
        return vectors


def _linear(dense: Dense) -> torch.nn.Module:
    from safetensors.torch import load_file

    where = f"{dense.weights.parent.name}/{dense.weights.name}"
    linear = torch.nn.Linear(dense.in_features, dense.out_features, dense.has_bias, device="meta")
    try:
        tensors = {
            name.removeprefix("linear."): tensor.float()
            for name, tensor in load_file(dense.weights).items()
        }
        linear.load_state_dict(tensors, assign=True)
    except Exception as error:  # safetensors and torch name each fault by an error of their own
        raise ModelInvalid(f"{where} cannot be used: {error}") from error
    made = torch.nn.Sequential(linear, getattr(torch.nn, dense.activation)())
    return made.eval().requires_grad_(requires_grad=False)


class Embedding(TextInputs):
    def __init__(self, model: TextModel) -> None:
        self._modules = read_modules(model.folder)
        super().__init__(model, max_tokens=self._modules.max_tokens)
        self._steps = Steps(self._modules)
        self._is_kserve = model.options.answers is Answers.KSERVE
        self._dimension = self._modules.dimension(model.config.get_text_config().hidden_size)
        self.vocabulary = self.encoder.vocabulary_size
        self._prompt_tokens = self._count_prompt_tokens()
        if self._prompt_tokens:
            bound = self._prompt_tokens + 1
            rule = TensorRule("INT64", trailing_shape=(), upper_bound=bound, is_option=True)
            rules = {**self.batching.rules, PROMPT_TOKENS: rule}
            self.batching = replace(self.batching, rules=rules)

    def _count_prompt_tokens(self) -> int:
        """Of a prompt that is not pooled, without a special token at its end."""
        modules, tokenizer = self._modules, self.encoder.tokenizer
        if modules.pools_prompt or not modules.prompt:
            return 0
        (ids,) = named_arrays(self.encoder.encode([self._lowered(modules.prompt)]))["input_ids"]
        return len(ids) - (int(ids[-1]) in tokenizer.all_special_ids)

    def _lowered(self, text: str) -> str:
        return text.lower() if self._modules.lowers_case else text

    def count_tokens(self, items: Sequence[str | list[int]]) -> int:
        """Number of tokens in the texts, each truncated to the model's limit."""
        return int(named_arrays(self.preprocess(items))["attention_mask"].sum())

    def read_tensors(self, tensors: Sequence[Tensor]) -> Sequence[Any]:
        """Texts, or the tokens of `input_ids` and `attention_mask`; raises InvalidRequest."""
        if all(tensor.name != "input_ids" for tensor in tensors):
            return super().read_tensors(tensors)
        arrays = named_arrays(self.batching.validate(tensors))
        masks = arrays["attention_mask"].astype(bool)
        return [row[mask].tolist() for row, mask in zip(arrays["input_ids"], masks, strict=True)]

    def preprocess(self, items: Sequence[Any]) -> tuple[Tensor, ...]:
        """Tokens of the prompt and the texts; a client's own tokens are used as they are."""
        texts = [each for each in items if isinstance(each, str)]
        rows = [each for each in items if not isinstance(each, str)]
        if rows:
            return self.encoder.pad(rows)
        prompt = self._modules.prompt
        encoded = self.encoder.encode([self._lowered(prompt + text) for text in texts])
        if not self._prompt_tokens:
            return encoded
        counts = np.full(len(texts), self._prompt_tokens, np.int64)
        return (*encoded, numeric_tensor(PROMPT_TOKENS, counts))

    def infer(self, network: PreTrainedModel, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """One vector of each text, pooled here so that outputs are small."""
        arguments = torch_inputs(inputs, network)
        left_out = arguments.pop(PROMPT_TOKENS, None)
        hidden = network(**arguments).last_hidden_state
        mask = arguments["attention_mask"]
        vectors = pool(hidden, mask, self._modules.pooling, left_out).float()
        return (DeviceTensor("embedding", "FP32", self._steps.apply(vectors)),)

    def postprocess(self, outputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        if not self._is_kserve:
            return tuple(outputs)
        return (numeric_tensor(kserve_answers.OUTPUT, outputs[0].data.astype(np.float64)),)

    def predictions(self, outputs: Sequence[Tensor]) -> list[Any]:
        return list(outputs[0].data.tolist())

    def output_types(self) -> list[dict[str, Any]]:
        if self._is_kserve:
            return kserve_answers.output_type("FP64", self._dimension)
        return [{"name": "embedding", "datatype": "FP32", "shape": [-1, self._dimension]}]
