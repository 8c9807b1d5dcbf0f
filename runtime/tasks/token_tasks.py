"""Tasks with an answer per token: filling masks, and classifying tokens (named entities).

V1 predictions are those of the pipelines of transformers (`fill-mask`, and `token-classification`
without aggregation) without `sequence`, `start` and `end`; V2 outputs have one JSON text per input.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch

from runtime.errors import InvalidRequest, ModelInvalid
from runtime.tasks.text import TextEncoder, TextInputs, torch_inputs
from runtime.wire.tensors import BYTES, Tensor, bytes_tensor, named_arrays, numeric_tensor

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from transformers import PretrainedConfig, PreTrainedModel

    from runtime.sandbox.pool import Sandbox

TOP_TOKENS: Final = 5
"""Tokens per mask, the default of the pipeline of transformers."""


class _TokenTask(TextInputs):
    """A text in, a JSON list out; named by `output`."""

    output: str

    def __init__(
        self, folder: Path, config: PretrainedConfig, sandbox: Sandbox | None = None
    ) -> None:
        super().__init__(TextEncoder(folder, config, sandbox=sandbox))
        self.batching = self.encoder.batching()

    def predictions(self, outputs: Sequence[Tensor]) -> list[Any]:
        return [json.loads(value) for value in outputs[0].data]

    def output_types(self) -> list[dict[str, Any]]:
        return [{"name": self.output, "datatype": BYTES, "shape": [-1]}]

    def _as_json(self, rows: Sequence[Any]) -> tuple[Tensor, ...]:
        texts = [json.dumps(row, ensure_ascii=False).encode() for row in rows]
        return (bytes_tensor(self.output, texts),)


class FillMask(_TokenTask):
    output = "fillings"

    def __init__(
        self, folder: Path, config: PretrainedConfig, sandbox: Sandbox | None = None
    ) -> None:
        super().__init__(folder, config, sandbox)
        tokenizer = self.encoder.tokenizer
        if tokenizer.mask_token is None or tokenizer.mask_token_id is None:
            raise ModelInvalid("the model's tokenizer has no mask token, which fill-mask needs")
        self._mask = tokenizer.mask_token
        self._mask_id: int = tokenizer.mask_token_id

    def preprocess(self, items: Sequence[str]) -> tuple[Tensor, ...]:
        """Raises InvalidRequest for a text without a mask among its tokens."""
        inputs = super().preprocess(items)
        has_mask = (named_arrays(inputs)["input_ids"] == self._mask_id).any(axis=1)
        if not has_mask.all():
            index = int(has_mask.argmin())
            raise InvalidRequest(
                f"each text must have {self._mask} within its first"
                f" {self.encoder.max_tokens} tokens, text {index} has not"
            )
        return inputs

    def infer(self, network: PreTrainedModel, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """The likeliest tokens of each mask and their probabilities, of shape [rows, tokens, n].

        Chosen here, so that outputs are small; zero where no mask is.
        """
        arguments = torch_inputs(inputs, network)
        token_ids = arguments["input_ids"]
        is_mask = token_ids == self._mask_id
        logits = network(**arguments).logits[is_mask].float()
        count = min(TOP_TOKENS, logits.shape[-1])
        best = logits.softmax(-1).topk(count, dim=-1)
        shape = (*token_ids.shape, count)
        tokens = torch.zeros(shape, dtype=torch.int64, device=token_ids.device)
        scores = torch.zeros(shape, dtype=torch.float32, device=token_ids.device)
        tokens[is_mask], scores[is_mask] = best.indices, best.values
        return (
            numeric_tensor("tokens", tokens.cpu().numpy()),
            numeric_tensor("scores", scores.cpu().numpy()),
            numeric_tensor("input_ids", token_ids.cpu().numpy()),
        )

    def postprocess(self, outputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        arrays = named_arrays(outputs)
        rows = zip(arrays["input_ids"], arrays["tokens"], arrays["scores"], strict=True)
        return self._as_json([self._fillings(*row) for row in rows])

    def _fillings(self, token_ids: Any, tokens: Any, scores: Any) -> list[Any]:
        """Of one text: a list, or with several masks a list for each."""
        found = [
            [
                {"score": float(score), "token": int(token), "token_str": self._text(token)}
                for token, score in zip(tokens[position], scores[position], strict=True)
            ]
            for position in np.flatnonzero(token_ids == self._mask_id)
        ]
        return found[0] if len(found) == 1 else found

    def _text(self, token: Any) -> str:
        return str(self.encoder.tokenizer.decode([int(token)]))

    def warm_up(self, network: PreTrainedModel) -> None:
        self.infer(network, self.preprocess([self._mask]))


class TokenClassification(_TokenTask):
    output = "entities"

    def __init__(
        self, folder: Path, config: PretrainedConfig, sandbox: Sandbox | None = None
    ) -> None:
        super().__init__(folder, config, sandbox)
        self._labels: dict[int, str] = {int(key): str(v) for key, v in config.id2label.items()}
        known = self.encoder.tokenizer
        ends = (known.cls_token_id, known.sep_token_id, known.bos_token_id, known.eos_token_id)
        self._left_out = [each for each in (*ends, known.pad_token_id) if each is not None]

    def infer(self, network: PreTrainedModel, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """The likeliest class of each token and its probability, of shape [rows, tokens]."""
        arguments = torch_inputs(inputs, network)
        best = network(**arguments).logits.float().softmax(-1).max(-1)
        return (
            numeric_tensor("classes", best.indices.cpu().numpy()),
            numeric_tensor("scores", best.values.cpu().numpy()),
            numeric_tensor("input_ids", arguments["input_ids"].cpu().numpy()),
        )

    def postprocess(self, outputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        arrays = named_arrays(outputs)
        rows = zip(arrays["input_ids"], arrays["classes"], arrays["scores"], strict=True)
        return self._as_json([self._entities(*row) for row in rows])

    def _entities(self, token_ids: Any, classes: Any, scores: Any) -> list[dict[str, Any]]:
        """Tokens of a class other than `O`, which means none."""
        words = self.encoder.tokenizer.convert_ids_to_tokens(token_ids.tolist())
        is_special = np.isin(token_ids, self._left_out)
        labels = [self._labels.get(int(each), f"LABEL_{each}") for each in classes]
        return [
            {"entity": label, "score": float(scores[index]), "index": index, "word": words[index]}
            for index, label in enumerate(labels)
            if label != "O" and not is_special[index]
        ]

    def warm_up(self, network: PreTrainedModel) -> None:
        self.infer(network, self.preprocess(["warm"]))
