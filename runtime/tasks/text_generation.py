"""Texts that networks generate: prompts and ends of texts, and the task of causal networks.

OpenAI's protocol streams the text from an engine (`runtime.generation`). V1 and V2 use the
processor like all others and respond once the text is complete.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import orjson
import torch

from common.inference_protocol import InvalidRequest
from common.inference_protocol.tensors import Tensor, bytes_tensor, numeric_tensor
from runtime.device.device_tensor import torch_inputs
from runtime.engines.networks.configuration import read_json
from runtime.errors import InvalidExpression, PromptTooLong
from runtime.tasks.text import (
    MAX_CHARACTERS_PER_TOKEN,
    TEXT_TYPE,
    TextEncoder,
    TextInputs,
    TextModel,
)

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

    from runtime.sandbox.sandbox_processes import Sandbox

MAX_TEMPLATE_CHARACTERS: Final = 256 * 1024
CONTEXT_TOKENS: Final = 8
"""Of a prompt's end: the first new token is decoded behind them, as it may begin with a space."""
DEFAULT_NEW_TOKENS = 16
"""Length of a V1 or V2 output without generation_config.json; OpenAI's default."""
MAX_NEW_TOKENS = 128
"""A V1 or V2 output is one inference, which blocks the device; OpenAI's protocol runs in steps."""


class TextPrompts:
    """Prompts of one model, never truncated."""

    def __init__(self, encoder: TextEncoder, sandbox: Sandbox | None, *, prefix: str = "") -> None:
        """`prefix`: what the model's task puts before each text."""
        self.prefix = prefix
        self._encoder = encoder
        self._sandbox = sandbox
        # Tokenizers store padding and truncation as state: a copy that never sets either can be
        # shared by threads without a lock.
        self.tokenizer: PreTrainedTokenizerBase = copy.deepcopy(encoder.tokenizer)
        self._max_characters = encoder.max_tokens * MAX_CHARACTERS_PER_TOKEN

    @property
    def vocabulary(self) -> int:
        """Tokens that tokenizer and network both know are below it."""
        return min(len(self.tokenizer), self._encoder.vocabulary_size)

    def ids(self, text: str, *, is_rendered: bool = False) -> list[int]:
        """Tokens of a prompt; blocks, raises PromptTooLong.

        `is_rendered`: the text is that of a chat template, which has the special tokens.
        """
        if len(text) > self._max_characters:
            raise PromptTooLong(
                f"the prompt has {len(text)} characters, this model takes fewer than"
                f" {self._max_characters}"
            )
        return self._encoder.token_ids(self.tokenizer, text, add_special_tokens=not is_rendered)

    def check_ids(self, token_ids: Sequence[int]) -> list[int]:
        """Tokens that a client sent; raises InvalidRequest for one outside the vocabulary."""
        wrong = [each for each in token_ids if not 0 <= each < self.vocabulary]
        if wrong:
            raise InvalidRequest(
                f"prompt tokens must be from 0 to {self.vocabulary - 1}, one was {wrong[0]}"
            )
        return list(token_ids)

    async def render(
        self, owner: str, messages: Sequence[Mapping[str, Any]], options: Mapping[str, Any]
    ) -> str:
        """The text of a conversation by the model's chat template, which runs in the sandbox.

        `owner`: the model's key; `options`: variables of the template, and how its text ends.
        Raises InvalidRequest, ExpressionStopped, ExpressionRefused.
        """
        if not self.tokenizer.chat_template:
            raise InvalidRequest("the model has no chat template; use /openai/v1/completions")
        if self._sandbox is None:
            raise InvalidRequest("this process renders no chat templates")
        size_bytes = len(orjson.dumps([messages, options]))
        if size_bytes > self._max_characters:
            raise PromptTooLong(
                f"the messages have {size_bytes} characters, this model takes fewer than"
                f" {self._max_characters}"
            )
        try:
            template = self.tokenizer.get_chat_template()
            if len(template) > MAX_TEMPLATE_CHARACTERS:
                raise InvalidRequest(
                    f"the chat template has {len(template)} characters, may have"
                    f" {MAX_TEMPLATE_CHARACTERS}"
                )
            text: str = await self._sandbox.evaluate(
                owner,
                size_bytes,
                operation="render",
                template=template,
                messages=list(messages),
                variables={**self.tokenizer.special_tokens_map, **options},
            )
        except (InvalidExpression, ValueError) as error:
            raise InvalidRequest(f"the chat template refused the messages: {error}") from error
        return text


class TextOutputs(TextInputs):
    """Base class of processors whose networks generate tokens."""

    answers_openai = True
    prompts: TextPrompts
    """Of OpenAI's protocol."""
    end_ids: frozenset[int]
    """Tokens that end a text."""

    def postprocess(self, outputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """The new texts; a second tensor has the tokens that each text continues."""
        ids, *contexts = (each.data.astype(np.int64, copy=False) for each in outputs)
        texts = self._decode(ids)
        if contexts:
            known = self._decode(contexts[0])
            whole = self._decode(np.concatenate([contexts[0], ids], axis=1))
            texts = [text[len(begin) :] for text, begin in zip(whole, known, strict=True)]
        return (bytes_tensor("text", [text.encode() for text in texts]),)

    def _decode(self, ids: Any) -> list[str]:
        texts: list[str] = self.encoder.tokenizer.batch_decode(ids, skip_special_tokens=True)
        return texts

    def predictions(self, outputs: Sequence[Tensor]) -> list[Any]:
        return [value.decode() for value in outputs[0].data]

    def output_types(self) -> list[dict[str, Any]]:
        return [TEXT_TYPE]


def context_tensor(prompt_ids: torch.Tensor, padding: int) -> Tensor:
    """The last tokens of each prompt, which is padded on the left."""
    ends = prompt_ids[:, -CONTEXT_TOKENS:]
    missing = CONTEXT_TOKENS - ends.shape[1]
    padded = torch.nn.functional.pad(ends, (missing, 0), value=padding)
    return numeric_tensor("context_ids", padded.cpu().numpy())


def without_padding(inputs: Sequence[Tensor]) -> list[Tensor]:
    """The columns of a single text that are no padding; several rows as they are."""
    mask = next((each.data for each in inputs if each.name == "attention_mask"), None)
    if mask is None or len(mask) != 1 or mask.all() or not mask.any():
        return list(inputs)
    (used,) = np.nonzero(mask[0])
    columns = slice(used[0], used[-1] + 1)
    return [
        Tensor(each.name, each.datatype, np.ascontiguousarray(each.data[:, columns]))
        if each.shape == mask.shape
        else each
        for each in inputs
    ]


def end_ids(
    folder: Path, config: PretrainedConfig, tokenizer: PreTrainedTokenizerBase
) -> frozenset[int]:
    """Tokens that end a text: the tokenizer's, and those of generation_config.json.

    Without any there, those of config.json. As in vLLM: fine-tuned models often name the end of a
    turn in one of the files alone.
    """
    path = folder / "generation_config.json"
    found = read_json(path).get("eos_token_id") if path.exists() else None
    text = config.get_text_config()
    if found is None:
        found = getattr(text, "eos_token_id", None)
    ids = [*(found if isinstance(found, list) else [found]), tokenizer.eos_token_id]
    return frozenset(each for each in ids if isinstance(each, int) and 0 <= each < text.vocab_size)


class TextGeneration(TextOutputs):
    def __init__(self, model: TextModel) -> None:
        super().__init__(model, takes_types=False)
        encoder = self.encoder
        # The continuation directly follows the text's end: pad and truncate at its beginning.
        encoder.tokenizer.padding_side = encoder.tokenizer.truncation_side = "left"
        self._padding = _set_padding(encoder.tokenizer, model.config.get_text_config().vocab_size)
        self.prompts = TextPrompts(encoder, model.sandbox)
        self.end_ids = end_ids(model.folder, model.config, encoder.tokenizer)
        self._new_tokens = min(new_tokens(model.folder), MAX_NEW_TOKENS, encoder.max_tokens - 1)
        self._max_tokens = encoder.max_tokens - self._new_tokens
        batching = encoder.batching(eos_ids=self.end_ids)
        self.batching = replace(batching, max_tokens=self._max_tokens)

    def preprocess(self, items: Sequence[str]) -> tuple[Tensor, ...]:
        """Tokens, padded on the left; a long text keeps its end."""
        if not all(items):
            raise InvalidRequest("a text to continue must not be empty")
        return self.encoder.encode(items, self._max_tokens)

    def infer(self, network: PreTrainedModel, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """The new tokens, by the parameters of generation_config.json, and what they follow."""
        arguments = torch_inputs(without_padding(inputs), network)
        prompt_ids = arguments["input_ids"]
        output_ids = self._generate(network, arguments, self._new_tokens)
        new_ids = output_ids[:, prompt_ids.shape[1] :]
        return (
            numeric_tensor("output_ids", new_ids.cpu().numpy()),
            context_tensor(prompt_ids, self._padding),
        )

    def warm_up(self, network: PreTrainedModel) -> None:
        self._generate(network, torch_inputs(self.preprocess(["warm"]), network), 1)

    def _generate(
        self, network: PreTrainedModel, arguments: Mapping[str, torch.Tensor], new_tokens: int
    ) -> torch.Tensor:
        output_ids: torch.Tensor = network.generate(
            **arguments,
            max_new_tokens=new_tokens,
            pad_token_id=self._padding,
            eos_token_id=sorted(self.end_ids) or None,
            tokenizer=self.prompts.tokenizer,  # for the strings that end a text
        )
        return output_ids


def _set_padding(tokenizer: PreTrainedTokenizerBase, vocabulary: int) -> int:
    """A token to pad with that the network knows: added ones often have no embedding."""
    for name in ("pad", "eos", "unk", "bos"):
        token_id: int | None = getattr(tokenizer, f"{name}_token_id")
        if token_id is not None and token_id < vocabulary:
            tokenizer.pad_token = getattr(tokenizer, f"{name}_token")
            return token_id
    tokenizer.pad_token = tokenizer.convert_ids_to_tokens(0)
    return 0


def new_tokens(folder: Path) -> int:
    """Length of an output in the model's generation_config.json, or the default."""
    path = folder / "generation_config.json"
    declared = read_json(path).get("max_new_tokens") if path.exists() else None
    return declared if isinstance(declared, int) and declared > 0 else DEFAULT_NEW_TOKENS
