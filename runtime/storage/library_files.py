"""Which file of a folder is the model, for formats that a library reads by itself. Pure.

ONNX, XGBoost, LightGBM and skops. A folder with a model of transformers, a pipeline or an exported
program is none of these.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import PurePosixPath

from runtime.errors import ModelInvalid, ModelUnsupported

ONNX_SUFFIX = ".onnx"
SKOPS_SUFFIX = ".skops"
LIGHTGBM_SUFFIX = ".txt"
XGBOOST_SUFFIXES = (".ubj", ".bst", ".xgb", ".json")
"""The third is MLflow's."""
LIGHTGBM_SUFFIXES = (".bst", ".lgb", LIGHTGBM_SUFFIX)
"""The second is MLflow's."""
BOOSTER_SUFFIXES = tuple(dict.fromkeys((*XGBOOST_SUFFIXES, *LIGHTGBM_SUFFIXES)))
LIBRARY_SUFFIXES = (ONNX_SUFFIX, SKOPS_SUFFIX, *BOOSTER_SUFFIXES)
"""In the order in which a folder is searched for its model."""
CODE_SUFFIXES = (".joblib", ".pkl", ".pickle")
"""Of pickles, which run code when they are read."""
PICKLE_ADVICE = (
    "pickled models are not served, since reading one runs code that came with it; convert one with"
    " `pilotlight convert FILE DIR`, save the model with skops.io.dump(model, 'model.skops'), or"
    " convert it to ONNX (model.onnx);"
    " a pool with --allow-pickle serves it in a process of its own"
)
_OTHER_MODELS = frozenset({"config.json", "model_index.json"})
_OTHER_SUFFIXES = (".safetensors", ".pt2")
_NOT_MODELS = re.compile(
    r"(readme|requirements|license|notice|.*settings|.*config|tokenizer|vocab|labels?|classes"
    r"|metadata|schema|signature|.*input_example|generation|special_tokens|added_tokens"
    r"|model_index|preprocessor).*"
)
"""Text files that lie beside models."""
_HARDLY_MODELS = re.compile(
    r"(.*[_.-])?(metrics?|columns?|features?|feature[_-](names|importances?)|params|parameters"
    r"|hyperparameters|report|results?|scores?|evaluation|examples?|samples?|mapping|index"
    r"|manifest|info|notes?|summary|args|history|log|card)\.[a-z]+"
)
"""Text files that are models only where no other file may be one."""
_NOT_DATA = (
    ".md",
    ".py",
    ".yaml",
    ".yml",
    ".pbtxt",
    ".csv",
    ".parquet",
    ".safetensors",
    ".pt2",
    ".h5",
    ".msgpack",
    SKOPS_SUFFIX,
    *CODE_SUFFIXES,
)
_NOT_DATA_NAMES = re.compile(r"MLmodel|(pytorch|tf|flax)_model.*|.*\.(png|jpe?g|gif|spm|model)")
"""Files beside ONNX models that hold none of their tensors."""


def library_files(
    paths: Iterable[str], uri: str, *, takes_pickles: bool = False
) -> tuple[str, ...]:
    """The model's file first, then the files of its external data; empty: another kind of model.

    Where a folder holds versions (`1/`, `2/`), only the highest counts. Raises ModelInvalid if the
    folder holds several models, or only pickles where those are not taken.
    """
    paths = sorted(paths)
    names = {PurePosixPath(path).name for path in paths}
    if names & _OTHER_MODELS or any(path.endswith(_OTHER_SUFFIXES) for path in paths):
        return ()
    paths = in_highest_version(paths, (*LIBRARY_SUFFIXES, *CODE_SUFFIXES))
    if found := model_of_suffixes(paths, LIBRARY_SUFFIXES, uri):
        return found
    if code := [path for path in paths if path.endswith(CODE_SUFFIXES)]:
        if takes_pickles:
            return (_only(code, uri),)
        raise ModelUnsupported(f"{uri} has {code[:4]}: {PICKLE_ADVICE}")
    return ()


def model_of_suffixes(paths: Iterable[str], suffixes: Sequence[str], uri: str) -> tuple[str, ...]:
    """The model's file, of the first suffix that one has, then those of its external data.

    Empty without one; raises ModelInvalid for several.
    """
    paths = tuple(paths)
    for suffix in suffixes:
        found = [path for path in paths if path.endswith(suffix) and may_be_model(path)]
        if found:
            model = _only(found, uri)
            return (model, *(_data_beside(model, paths) if suffix == ONNX_SUFFIX else ()))
    return ()


def in_highest_version(paths: Iterable[str], suffixes: tuple[str, ...]) -> list[str]:
    """Those in the folder with the highest number that holds a model; all without versions.

    The versions may lie in a folder of the model's name, as in a repository of Triton.
    """
    paths = list(paths)
    models = [path for path in paths if path.endswith(suffixes) and may_be_model(path)]
    base = _shared_folder(models)
    tops = (path.removeprefix(base).partition("/") for path in models)
    found = {top for top, slash, _ in tops if slash and top.isdecimal()}
    if not found:
        return paths
    version = max(found, key=lambda name: (int(name[:18]), name))
    return [path for path in paths if path.startswith(f"{base}{version}/")]


def _shared_folder(paths: Sequence[str]) -> str:
    """The deepest folder that all paths are in, with a slash, above any version; else empty."""
    base = ""
    while True:
        rest = (path.removeprefix(base).partition("/") for path in paths)
        tops = {top if slash else "" for top, slash, _ in rest}
        top = tops.pop() if len(tops) == 1 else ""
        if not top or top.isdecimal():
            return base
        base += f"{top}/"


def may_be_model(path: str) -> bool:
    return _NOT_MODELS.fullmatch(_name(path)) is None


def _only(found: Sequence[str], uri: str) -> str:
    """The one model's file, or the one named `model.*`, or the one that is likely a model."""
    likely = [path for path in found if not _HARDLY_MODELS.fullmatch(_name(path))]
    for among in (found, [path for path in found if PurePosixPath(path).stem == "model"], likely):
        if len(among) == 1:
            return among[0]
    raise ModelInvalid(
        f"{uri} has several models: {list(found[:8])}; a model must have a folder of its own, or"
        " its file the name model with the format's suffix"
    )


def _name(path: str) -> str:
    return PurePosixPath(path).name.lower()


def _data_beside(model: str, paths: Iterable[str]) -> list[str]:
    """Files that may hold the tensors of an ONNX model, in its folder and below."""
    folder = model.rpartition("/")[0]
    prefix = f"{folder}/" if folder else ""
    return [
        path
        for path in paths
        if path.startswith(prefix) and path != model
        if not path.endswith((*_NOT_DATA, *BOOSTER_SUFFIXES, ONNX_SUFFIX))
        if not _NOT_DATA_NAMES.fullmatch(PurePosixPath(path).name)
    ]
