"""Text inputs and outputs: reads V1 and V2 bodies, tokenises texts and decodes tokens."""

from __future__ import annotations

import json
import shutil
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from common.inference_protocol import InvalidRequest, PodError
from common.inference_protocol.tensors import (
    BYTES,
    Tensor,
    check_item_count,
    numeric_tensor,
    single_input,
)
from common.shown_value import shown
from registry.domain.model import OWN, TaskOptions
from runtime.engines.networks.configuration import position_limit, read_json
from runtime.errors import InvalidExpression, ModelInvalid
from runtime.storage.listing import ASSET_SUFFIXES
from runtime.tasks.task import PaddedBatching, Processor, TensorRule, texts_of
from runtime.tasks.tokenizer_files import (
    load_tokenizer,
    plain_backend,
    unbounded_decoder,
    unbounded_part,
)

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

    from runtime.sandbox.sandbox_processes import Sandbox

DEFAULT_MAX_TOKENS = 512
"""Texts are truncated to this many tokens if the model's files set no limit."""
MOST_TOKENS: Final = 100_000

MAX_CHARACTERS_PER_TOKEN: Final = 256
"""More characters per token of the context are not tokenised: the tokens would be cut off."""
MAX_CHARACTERS: Final = 4 * 1024**2
"""Of all texts of a request together, after that cut: tokenising them takes seconds."""

_FIELDS: Final = {
    "input_ids": attrgetter("ids"),
    "attention_mask": attrgetter("attention_mask"),
    "token_type_ids": attrgetter("type_ids"),
}
"""Of what a backend makes of a text."""
TEXT_TYPE: dict[str, Any] = {"name": "text", "datatype": BYTES, "shape": [-1]}


@dataclass(frozen=True, slots=True)
class TextModel:
    """What a text model's processor is made of."""

    folder: Path
    """Of its small files."""
    config: PretrainedConfig
    sandbox: Sandbox | None
    options: TaskOptions


class TextInputs(Processor):
    """Base class of processors that take texts."""

    platform = "transformers"
    batching: PaddedBatching
    warm_text = "warm"
    """Of the first inference."""

    def __init__(self, model: TextModel, **encoding: Any) -> None:
        """`encoding`: more of what a `TextEncoder` takes. Raises ModelInvalid."""
        self.encoder = TextEncoder(
            model.folder, model.config, sandbox=model.sandbox, options=model.options, **encoding
        )
        self.batching = self.encoder.batching()

    @property
    def waits_for_sandbox(self) -> bool:
        return self.encoder.is_sandboxed

    @property
    def is_quick(self) -> bool:
        return not self.encoder.is_sandboxed

    def read_instances(self, instances: Sequence[Any]) -> Sequence[Any]:
        """Read strings, or objects with a string `text`; raises InvalidRequest."""
        check_item_count(len(instances))
        texts = []
        for index, instance in enumerate(instances):
            text = instance.get("text") if isinstance(instance, dict) else instance
            if not isinstance(text, str):
                raise InvalidRequest(
                    f"instances[{index}] must be a string or an object with a string 'text',"
                    f" was {shown(instance)}"
                )
            texts.append(text)
        return texts

    def read_tensors(self, tensors: Sequence[Tensor]) -> Sequence[Any]:
        """Read one tensor of UTF-8 strings; raises InvalidRequest."""
        tensor = single_input(tensors, "text")
        if tensor.datatype == BYTES:
            check_item_count(tensor.data.size)
        return texts_of(tensor)

    def preprocess(self, items: Sequence[str]) -> tuple[Tensor, ...]:
        return self.encoder.encode(items)

    def warm_up(self, network: PreTrainedModel) -> None:
        self.infer(network, self.preprocess([self.warm_text]))

    def input_types(self) -> list[dict[str, Any]]:
        return [TEXT_TYPE]


class TextEncoder:
    def __init__(
        self,
        folder: Path,
        config: PretrainedConfig,
        *,
        sandbox: Sandbox | None = None,
        takes_types: bool = True,
        options: TaskOptions = OWN,
        max_tokens: int | None = None,
    ) -> None:
        """Load the tokenizer in the folder; raises ModelInvalid.

        Without a sandbox, tokenizers with unusual expressions are refused. `takes_types`: False for
        networks without token types. `max_tokens`: a limit of other files of the model.
        """
        self._sandbox = sandbox
        self._sandboxed: Path | None = None
        """A copy of the tokenizer's files, if the sandbox runs it."""
        changes = {"do_lower_case": False} if options.keeps_case else {}
        self._check_expressions(folder, changes)
        self.tokenizer = load_tokenizer(folder, config, **changes)
        if self.tokenizer.pad_token_id is None:
            self.tokenizer.pad_token = self.tokenizer.eos_token or self.tokenizer.unk_token
        self._adds_special_tokens = options.adds_special_tokens
        limits = (max_tokens, options.max_tokens, position_limit(config))
        self.max_tokens = _max_tokens(self.tokenizer.model_max_length, *limits)
        self.vocabulary_size = _vocabulary_size(config)
        self._token_types: int = getattr(config, "type_vocab_size", 2)
        names = ["input_ids", "attention_mask"]
        takes_types = takes_types and self._token_types > 0  # DeBERTa-v3 has none
        if takes_types and "token_type_ids" in self.tokenizer.model_input_names:
            names.append("token_type_ids")
        self._names = tuple(names)
        self._backend = plain_backend(self.tokenizer)
        self._backend_state: object = None
        """To what its tokenizer has set it: longest text, sides of truncation and padding."""

    @property
    def is_sandboxed(self) -> bool:
        """True if texts are tokenised in the sandbox, which a thread waits for."""
        return self._sandboxed is not None

    def _check_expressions(self, folder: Path, changes: Mapping[str, Any]) -> None:
        """Build a tokenizer with unusual expressions in the sandbox first; raises ModelInvalid."""
        if not (folder / "tokenizer.json").exists():
            return
        document = read_json(folder / "tokenizer.json")
        if (part := unbounded_decoder(document)) is not None:
            raise ModelInvalid(
                f"tokenizer.json has {part}, whose time is not bounded; use literal strings there"
            )
        part = unbounded_part(document)
        if part is None:
            return
        if self._sandbox is None:
            raise ModelInvalid(f"tokenizer.json has {part}, which runs in a pod's sandbox only")
        copy = Path(tempfile.mkdtemp(prefix="pilotlight-tokenizer-"))
        weakref.finalize(self, shutil.rmtree, copy, ignore_errors=True)
        for file in folder.iterdir():
            if file.suffix in ASSET_SUFFIXES and file.is_file():
                shutil.copyfile(file, copy / file.name)
        if changes:
            settings = copy / "tokenizer_config.json"
            fields = read_json(settings) if settings.exists() else {}
            settings.write_text(json.dumps({**fields, **changes}))
        try:
            self._sandbox.evaluate_in_thread(str(copy), 0, operation="load", folder=str(copy))
        except PodError as error:
            raise ModelInvalid(
                f"the model's tokenizer (with {part}) cannot be used: {error}"
            ) from error
        self._sandboxed = copy

    def batching(self, *, eos_ids: frozenset[int] = frozenset()) -> PaddedBatching:
        """Batching with the tokenizer's padding, on the side where the tokenizer pads."""
        padding = self.tokenizer.pad_token_id or 0
        rules = {
            "input_ids": TensorRule("INT64", padding=padding, upper_bound=self.vocabulary_size),
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
        """Token tensors, padded to the longest text and truncated; raises InvalidRequest."""
        limit, texts = max_tokens or self.max_tokens, self._cut(texts)
        tokenizer = self.tokenizer
        state = (limit, tokenizer.truncation_side, tokenizer.padding_side)
        if state == self._backend_state:
            rows = self._backend.encode_batch(texts, add_special_tokens=self._adds_special_tokens)
            encoded: Any = {name: [_FIELDS[name](row) for row in rows] for name in self._names}
        else:
            options: dict[str, Any] = {
                "padding": True,
                "truncation": True,
                "max_length": limit,
                "add_special_tokens": self._adds_special_tokens,
            }
            encode = self._encode_in_sandbox if self.is_sandboxed else tokenizer
            encoded = encode(texts, **options)  # its own arrays cost twice as much
            if self._backend is not None and not self.is_sandboxed:
                self._backend_state = state
        return tuple(
            numeric_tensor(name, np.array(encoded[name], dtype=np.int64)) for name in self._names
        )

    def pad(self, rows: Sequence[Sequence[int]]) -> tuple[Tensor, ...]:
        """Tensors of tokens that are used as they are, padded to the longest row and truncated."""
        rows = [row[: self.max_tokens] for row in rows]
        width = max(map(len, rows))
        arrays = {name: np.zeros((len(rows), width), dtype=np.int64) for name in self._names}
        arrays["input_ids"][:] = self.tokenizer.pad_token_id or 0
        for index, row in enumerate(rows):
            is_left = self.tokenizer.padding_side == "left"
            columns = slice(width - len(row), None) if is_left else slice(len(row))
            arrays["input_ids"][index, columns] = row
            arrays["attention_mask"][index, columns] = 1
        return tuple(numeric_tensor(name, array) for name, array in arrays.items())

    def token_ids(
        self, tokenizer: PreTrainedTokenizerBase, text: str, *, add_special_tokens: bool
    ) -> list[int]:
        """All tokens of a text, by a copy of the tokenizer that never pads; raises InvalidRequest.

        Blocks, as `encode` does.
        """
        options = {"add_special_tokens": add_special_tokens}
        if self._sandboxed is None:
            ids: list[int] = tokenizer(text, **options)["input_ids"]
            return ids
        (ids,) = self._encode_in_sandbox([text], **options)["input_ids"]
        return ids

    def _cut(self, texts: Sequence[str]) -> list[str]:
        """The texts without characters whose tokens would be truncated."""
        most = self.max_tokens * MAX_CHARACTERS_PER_TOKEN
        keeps_end = self.tokenizer.truncation_side == "left"
        cut = [
            text if len(text) <= most else text[-most:] if keeps_end else text[:most]
            for text in texts
        ]
        total = sum(map(len, cut))
        if total > MAX_CHARACTERS and len(cut) > 1:
            raise InvalidRequest(
                f"the texts of a request may have {MAX_CHARACTERS} characters together, have"
                f" {total}: send them in several requests"
            )
        return cut

    def _encode_in_sandbox(self, texts: list[str], **options: Any) -> Any:
        if self._sandbox is None:
            raise InvalidRequest("the tokenizer needs the sandbox")
        names = ("padding_side", "truncation_side", "pad_token", "src_lang")
        state = {name: getattr(self.tokenizer, name, None) for name in names}
        try:
            return self._sandbox.evaluate_in_thread(
                str(self._sandboxed),
                sum(map(len, texts)),
                operation="encode",
                folder=str(self._sandboxed),
                texts=texts,
                options=options,
                attributes={name: value for name, value in state.items() if value is not None},
            )
        except InvalidExpression as error:
            raise InvalidRequest(f"the tokenizer refused the input: {error}") from error


def _max_tokens(*limits: int | None) -> int:
    """The least limit; transformers writes 10^30 where a tokenizer has none."""
    found = [int(each) for each in limits if each is not None and 0 < each < 10**9]
    return min(*found, MOST_TOKENS) if found else DEFAULT_MAX_TOKENS


def _vocabulary_size(config: PretrainedConfig) -> int:
    """Raises ModelInvalid."""
    size = getattr(config.get_text_config(), "vocab_size", None)
    if not isinstance(size, int):
        raise ModelInvalid(
            f"{config.model_type} has no vocabulary: config.json gives no vocab_size, which the"
            " tasks of texts need"
        )
    return size
