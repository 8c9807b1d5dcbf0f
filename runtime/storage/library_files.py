"""Which file of a folder is the model, for formats that a library reads by itself. Pure.

ONNX, XGBoost, LightGBM and skops. A folder with a model of transformers, a pipeline or an exported
program is none of these.
"""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from runtime.errors import ModelInvalid

if TYPE_CHECKING:
    from collections.abc import Iterable

ONNX_SUFFIX = ".onnx"
SKOPS_SUFFIX = ".skops"
LIGHTGBM_SUFFIX = ".txt"
BOOSTER_SUFFIXES = (".ubj", ".bst", ".json", LIGHTGBM_SUFFIX)
"""Of XGBoost (`.ubj`, `.bst`, `.json`) and LightGBM (`.txt`, `.bst`)."""
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
    r"|metadata|schema|signature|input_example|generation|special_tokens|added_tokens).*"
)
"""Text files that lie beside models."""
_NOT_DATA = (".md", ".py", ".yaml", ".yml", ".pbtxt", *CODE_SUFFIXES)


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
    version = _highest_version(paths)
    paths = [path for path in paths if version is None or path.startswith(f"{version}/")]
    for suffix in LIBRARY_SUFFIXES:
        found = [path for path in paths if path.endswith(suffix) and _may_be_model(path)]
        if found:
            model = _only(found, uri)
            return (model, *(_data_beside(model, paths) if suffix == ONNX_SUFFIX else ()))
    if code := [path for path in paths if path.endswith(CODE_SUFFIXES)]:
        if takes_pickles:
            return (_only(code, uri),)
        raise ModelInvalid(f"{uri} has {code[:4]}: {PICKLE_ADVICE}")
    return ()


def _highest_version(paths: Iterable[str]) -> str | None:
    """The name of the folder with the highest number that holds a model."""
    found = {
        path.partition("/")[0]
        for path in paths
        if path.partition("/")[0].isdecimal() and "/" in path
        if path.endswith((*LIBRARY_SUFFIXES, *CODE_SUFFIXES)) and _may_be_model(path)
    }
    return max(found, key=lambda name: (int(name[:18]), name), default=None)


def _may_be_model(path: str) -> bool:
    return _NOT_MODELS.fullmatch(PurePosixPath(path).name.lower()) is None


def _only(found: list[str], uri: str) -> str:
    """The one model's file, or the one named `model.*`."""
    named = [path for path in found if PurePosixPath(path).stem == "model"]
    if len(found) > 1 and len(named) != 1:
        raise ModelInvalid(
            f"{uri} has several models: {found[:8]}; a model must have a folder of its own, or its"
            " file the name model with the format's suffix"
        )
    return found[0] if len(found) == 1 else named[0]


def _data_beside(model: str, paths: Iterable[str]) -> list[str]:
    """Files that may hold the tensors of an ONNX model, in its folder and below."""
    folder = model.rpartition("/")[0]
    prefix = f"{folder}/" if folder else ""
    return [
        path
        for path in paths
        if path.startswith(prefix) and path != model
        if not path.endswith((*_NOT_DATA, *BOOSTER_SUFFIXES, ONNX_SUFFIX))
    ]
