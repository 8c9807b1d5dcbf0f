"""Requests of text-to-text models, and the tasks that they choose: prefixes, parameters, languages.

Like the pipelines of transformers 4: `task_specific_params` of config.json has, by task, a prefix
of the text and parameters of the generation; `text2text-generation` is the default. Languages name
the task `translation_XX_to_YY`, or are tokens of a multilingual tokenizer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from common.inference_protocol.errors import InvalidRequest
from common.inference_protocol.tensors import BYTES, Tensor, check_item_count, single_input
from common.shown_value import shown
from runtime.engines.networks.configuration import read_json
from runtime.errors import ModelInvalid
from runtime.tasks.task import texts_of

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

DEFAULT_TASK: Final = "text2text-generation"
_TRANSLATION: Final = "translation_{}_to_{}"
_MIN_COUNTS: Final = {
    "max_length": 1,
    "max_new_tokens": 1,
    "min_length": 0,
    "min_new_tokens": 0,
    "num_beams": 1,
    "no_repeat_ngram_size": 0,
    "top_k": 0,
}
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
    """The tasks and languages of one model."""

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
    options = {name: _strings(tensor, count) for name, tensor in columns.items()}
    return [
        TextRequest(text, **{name: values[row] for name, values in options.items()})
        for row, text in enumerate(_strings(texts, count))
    ]


def _strings(tensor: Tensor, count: int) -> list[str]:
    if tensor.datatype == BYTES and tensor.data.size not in {1, count}:
        raise InvalidRequest(
            f"input {tensor.name!r} must have 1 value or {count}, one per text,"
            f" has {tensor.data.size}"
        )
    values = texts_of(tensor)
    return values if len(values) == count else values * count
