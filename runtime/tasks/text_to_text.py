"""Text to text, such as translation: generation by an encoder and a decoder, by the text's task."""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from common.inference_protocol import InvalidRequest
from common.inference_protocol.tensors import (
    Tensor,
    check_item_count,
    named_arrays,
    numeric_tensor,
    single_input,
)
from common.shown_value import shown
from runtime.device.device_tensor import torch_inputs
from runtime.engines.networks.configuration import output_limit, read_json
from runtime.errors import ModelInvalid
from runtime.tasks.task import TensorRule, one_each, texts_of
from runtime.tasks.text import TEXT_TYPE, TextModel
from runtime.tasks.text_generation import TextOutputs, TextPrompts, end_ids, without_padding

if TYPE_CHECKING:
    import numpy.typing as npt
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


DEFAULT_TASK: Final = "text2text-generation"
_TRANSLATION: Final = "translation_{}_to_{}"
_MIN_COUNTS: Final = {
    "max_length": 1, "max_new_tokens": 1, "min_length": 0, "min_new_tokens": 0, "num_beams": 1,
    "no_repeat_ngram_size": 0, "top_k": 0,
}  # fmt: skip
"""Parameters that are whole numbers, with the least allowed value."""
_NUMBERS: Final = ("length_penalty", "repetition_penalty", "temperature", "top_p")
_FLAGS: Final = ("do_sample", "early_stopping")
OPTIONS: Final = ("task", "source_lang", "target_lang")
"""Fields of V1 instances, and V2 tensors, beside the text."""


@dataclass(frozen=True, slots=True)
class TextTask:
    name: str
    prefix: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of the network's `generate`."""


@dataclass(frozen=True, slots=True)
class ChosenTask:
    """What one text is generated with."""

    index: int
    """Position in `TextTasks.tasks`, which all pods have alike."""
    source_lang: str | None = None
    """None: the tokenizer's default, or none."""
    first_token: int | None = None
    """The output's first token, which selects its language; None: any."""


@dataclass(frozen=True, slots=True)
class TextTasks:
    """The tasks and languages of one model, as in the pipelines of transformers 4.

    `task_specific_params` of config.json has, by task, a prefix of the text and parameters of the
    generation. Languages name the task `translation_XX_to_YY`, or are tokens of a multilingual
    tokenizer.
    """

    tasks: tuple[TextTask, ...]
    """The first one is the default."""
    languages: Mapping[str, int]
    """Tokens of a multilingual tokenizer by the code of the language."""

    def choose(self, request: TextRequest) -> ChosenTask:
        """Raises InvalidRequest for a task or language that the model does not have."""
        source, target = request.source_lang, request.target_lang
        if source is None and target is None:
            return ChosenTask(0 if request.task is None else self._index(request.task))
        if request.task is not None:
            raise InvalidRequest("give 'task', or 'source_lang' and 'target_lang', not both")
        if source is None or target is None:
            missing = "source_lang" if source is None else "target_lang"
            raise InvalidRequest(f"a translation needs {missing!r} too; {self._offer()}")
        name = _TRANSLATION.format(source, target)
        index = next((i for i, each in enumerate(self.tasks) if each.name == name), None)
        if source in self.languages and target in self.languages:
            return ChosenTask(index or 0, source, self.languages[target])
        if index is None:
            raise InvalidRequest(
                f"the model does not translate from {shown(source)} to"
                f" {shown(target)}; {self._offer()}"
            )
        return ChosenTask(index)

    def _index(self, task: str) -> int:
        names = [each.name for each in self.tasks]
        if task not in names:
            raise InvalidRequest(f"task must be one of {names}, was {shown(task)}")
        return names.index(task)

    def _offer(self) -> str:
        if self.languages:
            return f"its languages are {', '.join(sorted(self.languages))}"
        prefix = _TRANSLATION.partition("{")[0]
        pairs = [each.name for each in self.tasks if each.name.startswith(prefix)]
        if pairs:
            return f"it has {', '.join(pairs)}"
        return "it has one fixed task, without languages to choose from"


def read_text_tasks(folder: Path, tokenizer: PreTrainedTokenizerBase) -> TextTasks:
    """The tasks of the model whose small files are in `folder`; raises ModelInvalid."""
    config = read_json(folder / "config.json")
    common = _prefix(config, "config.json") or ""
    by_name = config.get("task_specific_params") or {}
    if not isinstance(by_name, dict) or not all(isinstance(v, dict) for v in by_name.values()):
        raise ModelInvalid("config.json: task_specific_params must hold an object for each task")
    default = _task(DEFAULT_TASK, by_name.get(DEFAULT_TASK, {}), common)
    others = [_task(name, by_name[name], common) for name in sorted(by_name)]
    tasks = (default, *(each for each in others if each.name != DEFAULT_TASK))
    return TextTasks(tasks, _languages(tokenizer))


def _task(name: str, fields: Mapping[str, Any], common: str) -> TextTask:
    where = f"config.json: task_specific_params: {shown(name)}"
    prefix = _prefix(fields, where)
    parameters = {}
    for each, value in fields.items():
        if value is None or each not in (*_MIN_COUNTS, *_NUMBERS, *_FLAGS):
            continue  # as in transformers, whose configurations have fields of many purposes
        if not _is_allowed(each, value):
            raise ModelInvalid(f"{where}: {each} cannot be {shown(value)}")
        parameters[each] = value
    return TextTask(name, common if prefix is None else prefix, parameters)


def _prefix(fields: Mapping[str, Any], where: str) -> str | None:
    prefix = fields.get("prefix")
    if prefix is not None and not isinstance(prefix, str):
        raise ModelInvalid(f"{where}: prefix must be a string, was {shown(prefix)}")
    return prefix


def _is_allowed(name: str, value: Any) -> bool:
    if name in _FLAGS:
        return isinstance(value, bool)
    if name in _MIN_COUNTS:
        return type(value) is int and value >= _MIN_COUNTS[name]
    return type(value) in (int, float) and math.isfinite(value)


def _languages(tokenizer: PreTrainedTokenizerBase) -> dict[str, int]:
    """Languages of a tokenizer that translates; most have their codes as special tokens."""
    if not hasattr(tokenizer, "_build_translation_inputs"):  # how transformers' pipeline knows them
        return {}
    known: Mapping[str, int] | None = getattr(tokenizer, "lang_code_to_id", None)
    if known:
        return dict(known)
    named = {str(value) for value in tokenizer.special_tokens_map.values()}
    codes = [token for token in tokenizer.all_special_tokens if token not in named]
    return {code: int(tokenizer.convert_tokens_to_ids(code)) for code in codes}


@dataclass(frozen=True, slots=True)
class TextRequest:
    """One text; without task and languages the model's default task applies."""

    text: str
    task: str | None = None
    source_lang: str | None = None
    target_lang: str | None = None


def parse_text_requests(instances: Sequence[Any]) -> list[TextRequest]:
    """Strings, or objects with a string `text` and options; raises InvalidRequest."""
    check_item_count(len(instances))
    return [_parse(each, f"instances[{index}]") for index, each in enumerate(instances)]


def _parse(instance: Any, path: str) -> TextRequest:
    fields = {"text": instance} if isinstance(instance, str) else instance
    if not isinstance(fields, dict) or not isinstance(fields.get("text"), str):
        raise InvalidRequest(
            f"{path} must be a string or an object with a string 'text', was {shown(instance)}"
        )
    allowed = ("text", *OPTIONS)
    if unknown := sorted(set(fields) - set(allowed)):
        raise InvalidRequest(
            f"{path} has unknown fields {shown(unknown)}; allowed are {', '.join(allowed)}"
        )
    for name in OPTIONS:
        value = fields.get(name)
        if value is not None and not isinstance(value, str):
            raise InvalidRequest(f"{path}: {name!r} must be a string, was {shown(value)}")
    return TextRequest(**fields)


def read_text_requests(tensors: Sequence[Tensor]) -> list[TextRequest]:
    """A tensor of texts, and options with one value or one per text; raises InvalidRequest."""
    texts = single_input(tensors, "text")
    columns = {tensor.name: tensor for tensor in tensors if tensor is not texts}
    if unknown := sorted(set(columns) - set(OPTIONS)):
        raise InvalidRequest(
            f"inputs must be 'text' and optionally {', '.join(OPTIONS)}, were also {shown(unknown)}"
        )
    count = texts.data.size
    check_item_count(count)
    options = {name: one_each(name, texts_of(tensor), count) for name, tensor in columns.items()}
    return [
        TextRequest(text, **{name: values[row] for name, values in options.items()})
        for row, text in enumerate(texts_of(texts))
    ]


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
