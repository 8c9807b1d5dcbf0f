"""What a folder of sentence-transformers computes after its network, by the folder's own files.

`modules.json` lists the modules: Transformer, Pooling, then Dense and Normalize in any order. What
is not computed here is refused by its file and name. Without `modules.json`: the mean over all
tokens, of length one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from common.shown_value import shown
from runtime.engines.networks.configuration import read_json, read_json_list
from runtime.errors import ModelInvalid
from runtime.storage.listing import MODULES

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
    """Raises ModelInvalid for modules that are not computed here."""
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
