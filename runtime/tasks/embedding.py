"""Text embedding: a vector of each text, as the model's files for sentence-transformers say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, assert_never

import numpy as np
import torch

from common.inference_protocol.tensors import Tensor, named_arrays, numeric_tensor
from common.shown_value import shown
from registry.domain.model import Answers
from runtime.device.device_tensor import from_device, torch_inputs
from runtime.engines.networks.configuration import read_json, read_json_list
from runtime.errors import ModelInvalid
from runtime.storage.listing import MODULES
from runtime.tasks.classification import OUTPUT, output_type
from runtime.tasks.task import TensorRule
from runtime.tasks.text import TextInputs, TextModel

if TYPE_CHECKING:
    from transformers import PreTrainedModel


POOLING_MODES: Final = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
"""The older files' flags, in the order in which several are put together, and their names."""
ACTIVATIONS: Final = ("Identity", "Tanh", "ReLU", "GELU", "Sigmoid", "SiLU")
"""Of torch, by the last part of their path."""
_TRANSFORMER_FILES: Final = tuple(
    f"sentence_{kind}_config.json"
    for kind in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
_KINDS: Final = ("Transformer", "Pooling", "Dense", "Normalize", "Dropout")
_MAX_FEATURES: Final = 1_000_000
_PROMPTS: Final = "config_sentence_transformers.json"
_OWN_PACKAGE: Final = "sentence_transformers."
_SENTENCE: Final = "sentence_embedding"


@dataclass(frozen=True, slots=True)
class Normalize:
    """To length one."""


@dataclass(frozen=True, slots=True)
class Dense:
    weights: Path
    activation: str
    in_features: int
    out_features: int
    has_bias: bool


@dataclass(frozen=True, slots=True)
class SentenceModules:
    """All that follows the network, and what goes before it."""

    pooling: tuple[str, ...] = ("mean",)
    steps: tuple[Dense | Normalize, ...] = (Normalize(),)
    pools_prompt: bool = True
    max_tokens: int | None = None
    lowers_case: bool = False
    prompt: str = ""
    """Put before each text."""

    def dimension(self, hidden_size: int) -> int:
        """Of the vectors."""
        sizes = [step.out_features for step in self.steps if isinstance(step, Dense)]
        return sizes[-1] if sizes else hidden_size * len(self.pooling)


def read_modules(folder: Path) -> SentenceModules:
    """The modules in `modules.json`: Transformer, Pooling, then Dense and Normalize in any order.

    Without the file: the mean over all tokens, scaled to length one. Raises ModelInvalid for
    others.
    """
    if not (folder / MODULES).exists():
        return SentenceModules()
    first, *others = _listed(folder)
    unknown = [each for each in (first, *others) if each.kind not in _KINDS]
    if unknown:
        raise ModelInvalid(
            f"{MODULES} has module {unknown[0].kind} in folder {unknown[0].path!r}; computed here"
            f" are {', '.join(_KINDS)}"
        )
    if first.kind != "Transformer" or first.path:
        raise ModelInvalid(
            f"{MODULES} begins with module {first.kind} in folder {first.path!r}; it must be a"
            " Transformer in the folder itself, as newer versions of sentence-transformers save it"
        )
    pooling = [each for each in others if each.kind == "Pooling"]
    if len(pooling) != 1 or others[0] is not pooling[0]:
        raise ModelInvalid(
            f"{MODULES} must have one Pooling, after the Transformer; it has"
            f" {', '.join(each.kind for each in (first, *others))}"
        )
    found = _with_transformer(folder, _with_pooling(folder / pooling[0].path / "config.json"))
    steps = [_step(folder, each) for each in others[1:]]
    return replace(found, steps=tuple(each for each in steps if each is not None))


@dataclass(frozen=True, slots=True)
class _Module:
    kind: str
    path: str
    """Its folder; empty: the model's own."""


def _listed(folder: Path) -> list[_Module]:
    modules = []
    for index, each in enumerate(read_json_list(folder / MODULES)):
        kind = each.get("type") if isinstance(each, dict) else None
        path = each.get("path", "") if isinstance(each, dict) else None
        if not isinstance(kind, str) or not isinstance(path, str) or ".." in path.split("/"):
            raise ModelInvalid(f"{MODULES}[{index}] must have a type and a path, was {shown(each)}")
        if not kind.startswith(_OWN_PACKAGE):
            raise ModelInvalid(
                f"{MODULES} has module {kind}, which is code that came with the model; it is never"
                " run"
            )
        modules.append(_Module(kind.rpartition(".")[2], path.strip("/")))
    if not modules:
        raise ModelInvalid(f"{MODULES} lists no modules")
    return modules


def _with_pooling(path: Path) -> SentenceModules:
    fields = read_json(path)
    named = fields.get("pooling_mode")
    modes = [mode for flag, mode in POOLING_MODES.items() if fields.get(flag)] or ["mean"]
    if named is not None:
        modes = [named] if isinstance(named, str) else list(named)
    known = list(POOLING_MODES.values())
    if not modes or any(mode not in known for mode in modes):
        raise ModelInvalid(
            f"{path.parent.name}/{path.name}: pooling_mode must be of {', '.join(known)}, was"
            f" {shown(named)}"
        )
    return SentenceModules(tuple(modes), (), pools_prompt=fields.get("include_prompt") is not False)


def _with_transformer(folder: Path, found: SentenceModules) -> SentenceModules:
    """With what the files of the Transformer say."""
    path = next((folder / each for each in _TRANSFORMER_FILES if (folder / each).exists()), None)
    fields = {} if path is None else read_json(path)
    name = "" if path is None else path.name
    task = fields.get("transformer_task", "feature-extraction")
    texts = (fields.get("modality_config") or {}).get("text", {})
    output = texts.get("method_output_name", "last_hidden_state")
    if task != "feature-extraction" or output != "last_hidden_state":
        raise ModelInvalid(
            f"{name}: transformer_task {shown(task)} with output {shown(output)} is not computed"
            " here; only 'feature-extraction' with 'last_hidden_state' is"
        )
    limit = fields.get("max_seq_length")
    if limit is not None and (type(limit) is not int or limit < 1):
        raise ModelInvalid(f"{name}: max_seq_length must be a number of tokens, was {shown(limit)}")
    return replace(
        found,
        max_tokens=limit,
        lowers_case=bool(fields.get("do_lower_case")),
        prompt=_default_prompt(folder / _PROMPTS),
    )


def _default_prompt(path: Path) -> str:
    fields = read_json(path) if path.exists() else {}
    name, prompts = fields.get("default_prompt_name"), fields.get("prompts") or {}
    if name is None:
        return ""
    if not isinstance(prompts, dict) or not isinstance(prompts.get(name), str):
        raise ModelInvalid(f"{path.name}: default_prompt_name {shown(name)} is not among prompts")
    return str(prompts[name])


def _step(folder: Path, module: _Module) -> Dense | Normalize | None:
    """None for a module that does nothing outside training."""
    path = folder / module.path / "config.json"
    fields = read_json(path) if module.path and path.exists() else {}
    where = f"{module.path}/config.json"
    for key in ("module_input_name", "module_output_name"):
        if fields.get(key) not in (None, _SENTENCE):
            raise ModelInvalid(f"{where}: {key} must be {_SENTENCE}, was {shown(fields[key])}")
    match module.kind:
        case "Normalize":
            return Normalize()
        case "Dropout":
            return None
        case "Dense":
            return _dense(folder / module.path, fields, where)
        case _:
            raise ModelInvalid(f"{MODULES} has a second module {module.kind}")


def _dense(folder: Path, fields: Mapping[str, Any], where: str) -> Dense:
    activation = str(fields.get("activation_function", "torch.nn.modules.activation.Tanh"))
    name = activation.rpartition(".")[2]
    if not activation.startswith("torch.nn.") or name not in ACTIVATIONS:
        raise ModelInvalid(
            f"{where}: activation_function must be of torch.nn and one of {', '.join(ACTIVATIONS)},"
            f" was {shown(activation)}"
        )
    if fields.get("use_residual"):
        raise ModelInvalid(f"{where}: use_residual is not computed here")
    width, height = (
        _size(fields.get(key), f"{where}: {key}") for key in ("in_features", "out_features")
    )
    weights = folder / "model.safetensors"
    if not weights.exists():
        raise ModelInvalid(
            f"{folder.name} has no model.safetensors; pytorch_model.bin is a pickle, which is never"
            " read: save the model again with safetensors"
        )
    return Dense(weights, name, width, height, fields.get("bias") is not False)


def _size(value: object, what: str) -> int:
    if not isinstance(value, int) or not 0 < value <= _MAX_FEATURES:
        raise ModelInvalid(f"{what} must be a number from 1 to {_MAX_FEATURES}, was {shown(value)}")
    return value


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
    answers_openai = True

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
        return (from_device("embedding", "FP32", self._steps.apply(vectors)),)

    def postprocess(self, outputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        if not self._is_kserve:
            return tuple(outputs)
        return (numeric_tensor(OUTPUT, outputs[0].data.astype(np.float64)),)

    def predictions(self, outputs: Sequence[Tensor]) -> list[Any]:
        return list(outputs[0].data.tolist())

    def output_types(self) -> list[dict[str, Any]]:
        if self._is_kserve:
            return output_type("FP64", self._dimension)
        return [{"name": "embedding", "datatype": "FP32", "shape": [-1, self._dimension]}]
