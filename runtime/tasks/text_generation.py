"""Text generation: a causal network goes on with a text.

OpenAI's protocol streams it through an engine (`runtime.generation`); V1 and V2 take this processor
like any other and answer when the text is whole.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from runtime.engines.networks.configuration import read_json
from runtime.errors import InvalidRequest, ModelInvalid, PromptTooLong
from runtime.tasks.text import (
    TEXT_INPUT,
    TEXT_OUTPUT,
    TextEncoder,
    end_ids,
    text_predictions,
    texts_of_instances,
    texts_of_tensors,
    torch_inputs,
)
from runtime.wire.tensors import Tensor, numeric_tensor

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

NEW_TOKENS = 16
"""Tokens of a V1 or V2 answer where generation_config.json does not say; OpenAI's default."""
MOST_NEW_TOKENS = 128
"""Such an answer is made in one go and holds the device: longer ones are for OpenAI's protocol."""

MOST_CHARACTERS = 256
"""Characters of a prompt per token of the context: longer ones are not even cut into tokens."""


class TextGeneration:
    """Texts to what follows them."""

    def __init__(self, folder: Path, config: PretrainedConfig) -> None:
        encoder = self._encoder = TextEncoder(folder, config, takes_types=False)
        self.tokenizer: PreTrainedTokenizerBase = encoder.tokenizer
        # What follows must come right after the text's end: pad and cut at its beginning.
        self.tokenizer.padding_side = self.tokenizer.truncation_side = "left"
        if self.tokenizer.pad_token_id is None:
            self.tokenizer.pad_token = self.tokenizer.eos_token or self.tokenizer.unk_token
        if self.tokenizer.pad_token_id is None:
            raise ModelInvalid("the model's tokenizer has no token to pad with")
        # Tokenizers keep padding and truncation as settings: one that is never told either can be
        # shared by threads with no lock.
        self._plain: PreTrainedTokenizerBase = copy.deepcopy(self.tokenizer)
        self._most_characters = encoder.max_tokens * MOST_CHARACTERS
        self._new_tokens = min(_new_tokens(folder), MOST_NEW_TOKENS, encoder.max_tokens - 1)
        self._most_tokens = encoder.max_tokens - self._new_tokens
        batching = encoder.batching(end_ids=end_ids(folder, config))
        self.batching = replace(batching, max_tokens=self._most_tokens)

    # OpenAI's protocol

    def prompt_ids(self, text: str) -> list[int]:
        """Tokens of a prompt, never cut; raises PromptTooLong."""
        return self._ids(text, add_special_tokens=True)

    def check_ids(self, token_ids: Sequence[int]) -> list[int]:
        """Tokens that a caller sent; raises InvalidRequest for one outside the vocabulary."""
        size = len(self._plain)
        wrong = [each for each in token_ids if not 0 <= each < size]
        if wrong:
            raise InvalidRequest(f"prompt tokens must be from 0 to {size - 1}, one was {wrong[0]}")
        return list(token_ids)

    def chat_ids(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        """Tokens of a conversation by the model's chat template; raises InvalidRequest.

        Templates run in transformers' sandbox: they come with the model.
        """
        if not self._plain.chat_template:
            raise InvalidRequest("the model has no chat template; use /openai/v1/completions")
        try:
            text = self._plain.apply_chat_template(
                list(messages), tokenize=False, add_generation_prompt=True
            )
        except Exception as error:  # a template raises what it likes, jinja2's errors among them
            raise InvalidRequest(f"the chat template refused the messages: {error}") from error
        return self._ids(text, add_special_tokens=False)

    def _ids(self, text: str, *, add_special_tokens: bool) -> list[int]:
        if len(text) > self._most_characters:
            raise PromptTooLong(
                f"the prompt has {len(text)} characters, this model takes fewer than"
                f" {self._most_characters}"
            )
        ids: list[int] = self._plain(text, add_special_tokens=add_special_tokens)["input_ids"]
        return ids

    # V1 and V2

    def read_instances(self, instances: Sequence[Any]) -> list[str]:
        """Texts of a V1 body."""
        return texts_of_instances(instances)

    def read_tensors(self, tensors: Sequence[Tensor]) -> list[str]:
        """Texts of a V2 body."""
        return texts_of_tensors(tensors)

    def preprocess(self, items: Sequence[str]) -> tuple[Tensor, ...]:
        """Tokens, padded on the left; of a long text the end is kept."""
        if not all(items):
            raise InvalidRequest("a text to go on with must not be empty")
        return self._encoder.encode(items, self._most_tokens)

    def infer(self, network: PreTrainedModel, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """The tokens that follow, as generation_config.json says."""
        arguments = torch_inputs(inputs, network)
        output_ids = network.generate(
            **arguments,
            max_new_tokens=self._new_tokens,
            pad_token_id=self.tokenizer.pad_token_id,
        )
        new_ids = output_ids[:, arguments["input_ids"].shape[1] :]
        return (numeric_tensor("output_ids", new_ids.cpu().numpy()),)

    def postprocess(self, outputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Texts from tokens."""
        return self._encoder.decoded(outputs)

    def predictions(self, outputs: Sequence[Tensor]) -> list[Any]:
        """One string per text."""
        return text_predictions(outputs)

    def warm_up(self, network: PreTrainedModel) -> None:
        """One token."""
        inputs = torch_inputs(self.preprocess(["warm"]), network)
        network.generate(**inputs, max_new_tokens=1, pad_token_id=self.tokenizer.pad_token_id)

    def input_types(self) -> list[dict[str, Any]]:
        """One string per item."""
        return [TEXT_INPUT]

    def output_types(self) -> list[dict[str, Any]]:
        """One string per item."""
        return [TEXT_OUTPUT]


def _new_tokens(folder: Path) -> int:
    """How long the model's own files want an answer to be."""
    path = folder / "generation_config.json"
    declared = read_json(path).get("max_new_tokens") if path.exists() else None
    return declared if isinstance(declared, int) and declared > 0 else NEW_TOKENS
