"""Arguments of KServe's servers in `args` of a predictor's model, and what they mean here.

All servers take `--model_name`; the others are those of KServe's Hugging Face server. What has no
counterpart here is named in `ignored`.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from common.shown_value import shown
from registry.domain.model import OWN, Answers, EngineChoice, Precision, Scores, Task, TaskOptions

HUGGING_FACE: Final = "huggingface"
_FLAGS: Final = frozenset({
    "return_probabilities", "return_raw_logits", "disable_lower_case", "disable_special_tokens",
    "trust_remote_code", "return_token_type_ids", "return_offsets_mapping", "disable_log_requests",
    "enable_predictor_health_check",
})  # fmt: skip
"""Arguments without a value."""
_TASKS: Final[Mapping[str, Task]] = {
    **{task.value.replace("-", "_"): task for task in Task},
    "sequence_classification": Task.TEXT_CLASSIFICATION,
    "generate": Task.TEXT_GENERATION,
    "embed": Task.TEXT_EMBEDDING,
    "embedding": Task.TEXT_EMBEDDING,
    "classify": Task.TEXT_CLASSIFICATION,
}
"""KServe's names and vLLM's."""
_PRECISIONS: Final[Mapping[str, Precision | None]] = {
    "auto": None,
    "float32": Precision.FLOAT32,
    "float": Precision.FLOAT32,
    "bfloat16": Precision.BFLOAT16,
}
"""`auto`: the type of the stored weights, as here where nothing is said."""
ENGINE_FLAGS: Final = frozenset({
    "enforce_eager", "no_enforce_eager", "enable_prefix_caching", "no_enable_prefix_caching",
    "enable_chunked_prefill", "no_enable_chunked_prefill", "enable_auto_tool_choice", "enable_lora",
})  # fmt: skip
ENGINE_VALUES: Final = frozenset({
    "max_num_seqs", "max_num_batched_tokens", "kv_cache_dtype",
    "quantization", "tokenizer_mode", "tool_call_parser", "reasoning_parser", "seed", "block_size",
    "chat_template_content_format", "limit_mm_per_prompt", "override_generation_config",
    "max_lora_rank", "max_loras", "runner", "convert",
})  # fmt: skip
"""Arguments of vLLM that its engine takes here: they change one model, and reach no file, address
or code. Those above have no value."""
MOUNT: Final = "/mnt/models"
"""Where KServe puts the files of storageUri."""
_NAME: Final = re.compile(r"[-_./:A-Za-z0-9]{1,253}")
_MAX_TOKENS: Final = 10_000_000


@dataclass(slots=True)
class ServerArguments:
    model_name: str = ""
    """By which the model is called beside its service's name; empty: none."""
    storage_uri: str = ""
    """Of `--model_id`; empty: none."""
    task: Task | None = None
    precision: Precision | None = None
    options: TaskOptions = OWN
    backend: EngineChoice | None = None
    """None: as the pod chooses."""
    engine: list[str] = field(default_factory=list)
    """vLLM's, each with its value after `=`."""
    ignored: list[str] = field(default_factory=list)
    """Arguments that mean nothing here, as they were written, without their values."""
    problems: list[str] = field(default_factory=list)


def read_arguments(model: Mapping[str, Any], path: str) -> ServerArguments:
    """Read `args` of the model object at `path`; mistakes are in `problems`."""
    found = ServerArguments()
    given = model.get("args")
    if not given:
        return found
    if not isinstance(given, list) or not all(isinstance(each, str) for each in given):
        found.problems.append(f"{path}.args must be a list of texts, was {shown(given)}")
        return found
    reader = _Reader(found, f"{path}.args", format_name(model) == HUGGING_FACE)
    for written, value in _pairs(given):
        reader.read(written, value)
    reader.close()
    return found


def format_name(model: Mapping[str, Any]) -> object:
    model_format = model.get("modelFormat")
    return model_format.get("name") if isinstance(model_format, dict) else None


def _pairs(arguments: list[str]) -> Iterator[tuple[str, str | None]]:
    """Each argument with its value, in one text with `=` or in the next text."""
    index = 0
    while index < len(arguments):
        name, has_value, value = arguments[index].partition("=")
        index += 1
        has_none = _key(name) in _FLAGS | ENGINE_FLAGS
        takes_next = name.startswith("--") and not has_value and not has_none
        if takes_next and index < len(arguments) and not arguments[index].startswith("--"):
            yield name, arguments[index]
            index += 1
        else:
            yield name, value if has_value else None


def _key(written: str) -> str:
    return written.removeprefix("--").replace("-", "_")


@dataclass(slots=True)
class _Reader:
    found: ServerArguments
    path: str
    is_hugging_face: bool
    _scores: set[Scores] = field(default_factory=set)
    _model_id: str = ""
    _revisions: dict[str, str] = field(default_factory=dict)

    def read(self, written: str, value: str | None) -> None:
        key = _key(written)
        if key == "model_name" or (self.is_hugging_face and key == "served_model_name"):
            if not _NAME.fullmatch(value or ""):
                self._reject(written, "a name of 1 to 253 letters, digits and any of -_./:", value)
            self.found.model_name = value or ""
        elif self.is_hugging_face and self._read_engine(key, value):
            return
        elif not self.is_hugging_face or not self._read_hugging_face(key, written, value):
            self.found.ignored.append(written)

    def _read_engine(self, key: str, value: str | None) -> bool:
        """Whether the argument is one of vLLM's, whose values vLLM checks."""
        is_one = key in (ENGINE_FLAGS if value is None else ENGINE_VALUES)
        if is_one:
            text = "" if value is None else f"={value}"
            self.found.engine.append(f"--{key.replace('_', '-')}{text}")
        return is_one

    def _read_hugging_face(self, key: str, written: str, value: str | None) -> bool:
        """Whether the argument has a counterpart here."""
        match key:
            case "task":
                self._read_task(written, value)
            case "model_id":
                self._model_id = value or ""
                if not value:
                    self._reject(written, "ORG/NAME", value)
            case "model_revision" | "tokenizer_revision":
                self._revisions[key] = value or ""
            case "model_dir":
                return value == MOUNT
            case "max_length" | "max_model_len":
                self._read_length(written, value)
            case "dtype":
                return self._read_precision(written, value)
            case "backend":
                return self._read_backend(value)
            case "return_probabilities":
                self._scores.add(Scores.ALL)
            case "return_raw_logits":
                self._scores.add(Scores.LOGITS)
            case "disable_lower_case":
                self._set(keeps_case=True)
            case "disable_special_tokens":
                self._set(adds_special_tokens=False)
            case _:
                return False
        return True

    def close(self) -> None:
        """Read what several arguments say together."""
        if len(self._scores) > 1:
            self.found.problems.append(
                f"{self.path} may have one of --return_probabilities and --return_raw_logits, has"
                " both"
            )
        for scores in self._scores:
            self._set(answers=Answers.KSERVE, scores=scores)
        revision = self._revisions.get("model_revision", "")
        if self._revisions.get("tokenizer_revision", revision) != revision:
            self.found.ignored.append("--tokenizer_revision")
        if self._model_id.startswith(MOUNT):
            return
        if self._model_id and self._model_id.count("/") != 1:
            self._reject(
                "--model_id",
                "ORG/NAME, as in google-bert/bert-base-uncased: models of the Hub without an"
                " organisation have one by now",
                self._model_id,
            )
        elif self._model_id:
            suffix = f":{revision}" if revision else ""
            self.found.storage_uri = f"hf://{self._model_id}{suffix}"
        elif revision:
            self.found.ignored.append("--model_revision")

    def _read_task(self, written: str, value: str | None) -> None:
        task = _TASKS.get((value or "").lower().replace("-", "_"))
        if task is None:
            self._reject(written, f"one of {', '.join(_TASKS)}", value)
        self.found.task = task

    def _read_length(self, written: str, value: str | None) -> None:
        if (
            value is None
            or not value.isascii()
            or not value.isdecimal()
            or not (0 < int(value[:9]) <= _MAX_TOKENS)
        ):
            self._reject(written, f"a number of tokens from 1 to {_MAX_TOKENS}", value)
            return
        self._set(max_tokens=int(value[:9]))

    def _read_precision(self, written: str, value: str | None) -> bool:
        if value in ("float16", "half"):
            return False
        if value is None or value not in _PRECISIONS:
            self._reject(written, f"one of {', '.join((*_PRECISIONS, 'float16', 'half'))}", value)
        else:
            self.found.precision = _PRECISIONS[value]
        return True

    def _read_backend(self, value: str | None) -> bool:
        """KServe's own backend answers in its own forms; `auto` asks for nothing."""
        if value == HUGGING_FACE:
            self._set(answers=Answers.KSERVE)
        elif value == EngineChoice.VLLM:
            self.found.backend = EngineChoice.VLLM
        return value in (HUGGING_FACE, EngineChoice.VLLM, "auto")

    def _set(self, **changes: Any) -> None:
        self.found.options = replace(self.found.options, **changes)

    def _reject(self, written: str, allowed: str, value: str | None) -> None:
        self.found.problems.append(
            f"{self.path}: {written} must be {allowed}, was {shown(value or '')}"
        )
