"""Text generation: a causal network continues a text.

OpenAI's protocol streams the text from an engine (`runtime.generation`). V1 and V2 use this
processor like all others and respond once the text is complete.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from runtime.engines.networks.configuration import read_json
from runtime.errors import InvalidExpression, InvalidRequest, ModelInvalid, PromptTooLong
from runtime.tasks.text import (
    MAX_CHARACTERS_PER_TOKEN,
    TextEncoder,
    TextInputs,
    TextOutputs,
    eos_ids,
    torch_inputs,
)
from runtime.wire.tensors import Tensor, numeric_tensor

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

    from runtime.sandbox.pool import Sandbox

DEFAULT_NEW_TOKENS = 16
"""Length of a V1 or V2 output without generation_config.json; OpenAI's default."""
MAX_NEW_TOKENS = 128
"""A V1 or V2 output is one inference, which blocks the device; OpenAI's protocol runs in steps."""
MAX_TEMPLATE_CHARACTERS = 256 * 1024


class TextGeneration(TextInputs, TextOutputs):
    def __init__(
        self, folder: Path, config: PretrainedConfig, sandbox: Sandbox | None = None
    ) -> None:
        super().__init__(TextEncoder(folder, config, sandbox=sandbox, takes_types=False))
        self._sandbox = sandbox
        encoder = self.encoder
        self.tokenizer: PreTrainedTokenizerBase = encoder.tokenizer
        # The continuation directly follows the text's end: pad and truncate at its beginning.
        self.tokenizer.padding_side = self.tokenizer.truncation_side = "left"
        if self.tokenizer.pad_token_id is None:
            self.tokenizer.pad_token = self.tokenizer.eos_token or self.tokenizer.unk_token
        if self.tokenizer.pad_token_id is None:
            raise ModelInvalid("the model's tokenizer has no token to pad with")
        # Tokenizers store padding and truncation as state: a copy that never sets either can be
        # shared by threads without a lock.
        self._plain: PreTrainedTokenizerBase = copy.deepcopy(self.tokenizer)
        self._max_characters = encoder.max_tokens * MAX_CHARACTERS_PER_TOKEN
        self._new_tokens = min(_new_tokens(folder), MAX_NEW_TOKENS, encoder.max_tokens - 1)
        self._max_tokens = encoder.max_tokens - self._new_tokens
        batching = encoder.batching(eos_ids=eos_ids(folder, config))
        self.batching = replace(batching, max_tokens=self._max_tokens)

    # OpenAI's protocol

    def prompt_ids(self, text: str, *, is_rendered: bool = False) -> list[int]:
        """Tokens of a prompt, never truncated; blocks, raises PromptTooLong.

        `is_rendered`: the text is that of a chat template, which has the special tokens.
        """
        if len(text) > self._max_characters:
            raise PromptTooLong(
                f"the prompt has {len(text)} characters, this model takes fewer than"
                f" {self._max_characters}"
            )
        return self.encoder.token_ids(self._plain, text, add_special_tokens=not is_rendered)

    def check_ids(self, token_ids: Sequence[int]) -> list[int]:
        """Tokens that a client sent; raises InvalidRequest for one outside the vocabulary."""
        size = len(self._plain)
        wrong = [each for each in token_ids if not 0 <= each < size]
        if wrong:
            raise InvalidRequest(f"prompt tokens must be from 0 to {size - 1}, one was {wrong[0]}")
        return list(token_ids)

    async def render_chat(self, owner: str, messages: Sequence[Mapping[str, Any]]) -> str:
        """The text of a conversation by the model's chat template, which runs in the sandbox.

        `owner`: the model's key. Raises InvalidRequest, ExpressionStopped, ExpressionRefused.
        """
        if not self._plain.chat_template:
            raise InvalidRequest("the model has no chat template; use /openai/v1/completions")
        if self._sandbox is None:
            raise InvalidRequest("this process renders no chat templates")
        size_bytes = sum(len(str(value)) for each in messages for value in each.values())
        if size_bytes > self._max_characters:
            raise PromptTooLong(
                f"the messages have {size_bytes} characters, this model takes fewer than"
                f" {self._max_characters}"
            )
        try:
            template = self._plain.get_chat_template()
            if len(template) > MAX_TEMPLATE_CHARACTERS:
                raise InvalidRequest(
                    f"the chat template has {len(template)} characters, may have"
                    f" {MAX_TEMPLATE_CHARACTERS}"
                )
            tokens = self._plain.special_tokens_map
            text: str = await self._sandbox.evaluate(
                owner,
                size_bytes,
                operation="render",
                template=template,
                messages=list(messages),
                tokens=tokens,
            )
        except (InvalidExpression, ValueError) as error:
            raise InvalidRequest(f"the chat template refused the messages: {error}") from error
        return text

    # V1 and V2

    def preprocess(self, items: Sequence[str]) -> tuple[Tensor, ...]:
        """Tokens, padded on the left; a long text keeps its end."""
        if not all(items):
            raise InvalidRequest("a text to continue must not be empty")
        return self.encoder.encode(items, self._max_tokens)

    def infer(self, network: PreTrainedModel, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """The new tokens, by the parameters of generation_config.json."""
        arguments = torch_inputs(inputs, network)
        output_ids = network.generate(
            **arguments,
            max_new_tokens=self._new_tokens,
            pad_token_id=self.tokenizer.pad_token_id,
        )
        new_ids = output_ids[:, arguments["input_ids"].shape[1] :]
        return (numeric_tensor("output_ids", new_ids.cpu().numpy()),)

    def warm_up(self, network: PreTrainedModel) -> None:
        inputs = torch_inputs(self.preprocess(["warm"]), network)
        network.generate(**inputs, max_new_tokens=1, pad_token_id=self.tokenizer.pad_token_id)


def _new_tokens(folder: Path) -> int:
    """Length of an output in the model's generation_config.json, or the default."""
    path = folder / "generation_config.json"
    declared = read_json(path).get("max_new_tokens") if path.exists() else None
    return declared if isinstance(declared, int) and declared > 0 else DEFAULT_NEW_TOKENS
