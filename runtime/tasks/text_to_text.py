"""Text to text, such as translation: generation by an encoder and a decoder, by the text's task."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from common.inference_protocol.tensors import Tensor, named_arrays, numeric_tensor
from runtime.device.device_tensor import torch_inputs
from runtime.engines.networks.position_limit import output_limit
from runtime.tasks.tensor_batching import TensorRule
from runtime.tasks.text import TEXT_TYPE, TextModel
from runtime.tasks.text_generation import TextOutputs, TextPrompts, end_ids, without_padding
from runtime.tasks.text_tasks import (
    OPTIONS,
    ChosenTask,
    TextRequest,
    parse_text_requests,
    read_text_requests,
    read_text_tasks,
)

if TYPE_CHECKING:
    import numpy.typing as npt
    from transformers import PreTrainedModel


TASK: Final = "task"
"""Tensor with the index of each text's task."""
FIRST_TOKEN: Final = "forced_bos_token_id"
"""Tensor with each output's first token; the vocabulary's size stands for any."""


class TextToText(TextOutputs):
    def __init__(self, model: TextModel) -> None:
        super().__init__(model, takes_types=False)
        config, folder = model.config, model.folder
        self._tasks = read_text_tasks(folder, self.encoder.tokenizer)
        self._any_token: int = config.get_text_config(decoder=True).vocab_size
        self.prompts = TextPrompts(self.encoder, model.sandbox, prefix=self._tasks.tasks[0].prefix)
        self.end_ids = end_ids(folder, config, self.encoder.tokenizer)
        batching = self.encoder.batching(eos_ids=self.end_ids)
        chosen = {
            TASK: TensorRule(
                "INT64", trailing_shape=(), upper_bound=len(self._tasks.tasks), is_option=True
            ),
            FIRST_TOKEN: TensorRule(
                "INT64", trailing_shape=(), upper_bound=self._any_token + 1, is_option=True
            ),
        }
        self.batching = replace(batching, rules={**batching.rules, **chosen})
        self._output_limit = output_limit(config)
        self._padding: int = self.encoder.tokenizer.pad_token_id or 0
        # The language of the texts is a state of a multilingual tokenizer.
        self._language = threading.Lock()
        self._own_language = getattr(self.encoder.tokenizer, "src_lang", None)

    def read_instances(self, instances: Sequence[Any]) -> list[TextRequest]:
        return parse_text_requests(instances)

    def read_tensors(self, tensors: Sequence[Tensor]) -> list[TextRequest]:
        return read_text_requests(tensors)

    def preprocess(self, items: Sequence[TextRequest | str]) -> tuple[Tensor, ...]:
        """Tokens of prefix and text; with options of the generation if a text has a task."""
        requests = [TextRequest(each) if isinstance(each, str) else each for each in items]
        chosen = [self._tasks.choose(each) for each in requests]
        texts = [
            self._tasks.tasks[task.index].prefix + each.text
            for each, task in zip(requests, chosen, strict=True)
        ]
        tokens = self._encode(texts, [each.source_lang for each in chosen])
        return (*tokens, *self._options(chosen))

    def _options(self, chosen: Sequence[ChosenTask]) -> tuple[Tensor, ...]:
        if not any(each.index or each.first_token is not None for each in chosen):
            return ()
        first = [
            self._any_token if each.first_token is None else each.first_token for each in chosen
        ]
        return (
            numeric_tensor(TASK, np.array([each.index for each in chosen], np.int64)),
            numeric_tensor(FIRST_TOKEN, np.array(first, np.int64)),
        )

    def _encode(self, texts: Sequence[str], languages: Sequence[str | None]) -> tuple[Tensor, ...]:
        if not self._tasks.languages:
            return self.encoder.encode(texts)
        parts = []
        with self._language:
            pairs = zip(languages, texts, strict=True)
            for language, group in itertools.groupby(pairs, lambda pair: pair[0]):
                self.encoder.tokenizer.src_lang = language or self._own_language
                parts.append(self.encoder.encode([text for _, text in group]))
        return self.batching.join(parts)

    def infer(self, network: PreTrainedModel, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Generate by generation_config.json and each text's task."""
        arrays = named_arrays(inputs)
        tokens = [each for each in inputs if each.name not in (TASK, FIRST_TOKEN)]
        rows = len(tokens[0].data)
        tasks = arrays.get(TASK, np.zeros(rows, np.int64))
        first = arrays.get(FIRST_TOKEN, np.full(rows, self._any_token))
        keys, group_of = np.unique(np.stack([tasks, first]), axis=1, return_inverse=True)
        groups = [np.flatnonzero(group_of.ravel() == index) for index in range(keys.shape[1])]
        found = [
            self._generate(network, [_rows(each, group) for each in tokens], int(task), int(token))
            for group, task, token in zip(groups, *keys, strict=True)
        ]
        width = max(each.shape[1] for each in found)
        output_ids = np.full((rows, width), self._padding, np.int64)
        for group, part in zip(groups, found, strict=True):
            output_ids[group, : part.shape[1]] = part
        return (numeric_tensor("output_ids", output_ids),)

    def _generate(
        self, network: PreTrainedModel, inputs: Sequence[Tensor], task: int, token: int
    ) -> npt.NDArray[np.int64]:
        parameters = dict(self._tasks.tasks[task].parameters)
        if network.generation_config.max_new_tokens is not None:
            parameters.pop("max_length", None)  # the former takes precedence, with a warning
        self._limit_length(network, parameters)
        if token != self._any_token:
            parameters["forced_bos_token_id"] = token
        arguments = torch_inputs(without_padding(inputs), network)
        output_ids: npt.NDArray[np.int64] = (
            network.generate(
                **arguments,
                **parameters,
                eos_token_id=sorted(self.end_ids) or None,
                tokenizer=self.prompts.tokenizer,  # for the strings that end a text
            )
            .cpu()
            .numpy()
        )
        return output_ids

    def _limit_length(self, network: PreTrainedModel, parameters: dict[str, Any]) -> None:
        """No output beyond the decoder's last position, whose first one is the start token's."""
        for name in ("max_new_tokens", "max_length"):
            wanted = parameters.get(name, getattr(network.generation_config, name))
            if wanted and self._output_limit is not None and wanted > self._output_limit:
                parameters[name] = self._output_limit

    def warm_up(self, network: PreTrainedModel) -> None:
        """Generate one token: a whole output would cost as much as a request."""
        inputs = torch_inputs(self.preprocess(["warm"]), network)
        tokenizer = self.prompts.tokenizer
        network.generate(**inputs, min_new_tokens=1, max_new_tokens=1, tokenizer=tokenizer)

    def input_types(self) -> list[dict[str, Any]]:
        """All inputs but the text are optional."""
        return [TEXT_TYPE, *({**TEXT_TYPE, "name": name} for name in OPTIONS)]


def _rows(tensor: Tensor, rows: npt.NDArray[np.int64]) -> Tensor:
    return Tensor(tensor.name, tensor.datatype, tensor.data[rows])
