"""The engine of a model's folder, by the files in it. Imports optional engines on first use."""

from __future__ import annotations

import os
from pathlib import Path

from runtime.engines.engine import Engine
from runtime.engines.networks.network import NetworkEngine
from runtime.errors import EngineMissing, ModelInvalid
from runtime.storage.listing import (
    ADAPTER_CONFIG,
    ESTIMATOR_SUFFIXES,
    GGUF_SUFFIX,
    LIGHTGBM_SUFFIX,
    ONNX_SUFFIX,
    PIPELINE_INDEX,
    PROGRAM_SUFFIX,
    library_files,
)

LIGHTGBM_START = b"tree\n"
"""The first line of LightGBM's files, which share the suffix `.bst` with XGBoost's."""
_ENGINES_OF_FORMAT = {
    "sklearn": ("sklearn", "onnx"),
    "xgboost": ("xgboost", "onnx"),
    "lightgbm": ("lightgbm", "onnx"),
    "onnx": ("onnx",),
}


def is_pipeline(folder: Path) -> bool:
    """Whether the folder holds a pipeline of diffusers."""
    return (folder / PIPELINE_INDEX).exists()


def program_path(folder: Path) -> Path | None:
    """The folder's exported program, None without one; raises ModelInvalid for several."""
    found = [path for path in model_files(folder) if path.suffix == PROGRAM_SUFFIX]
    if len(found) > 1:
        raise ModelInvalid(f"the model has several programs: {[path.name for path in found]}")
    return found[0] if found else None


def library_path(folder: Path) -> Path | None:
    """The file that a library reads, None for other models; raises ModelInvalid for several."""
    has_network = (folder / "config.json").exists()
    if has_network and not any(folder.glob(f"*{GGUF_SUFFIX}")):  # spares the search
        return None
    paths = [str(path.relative_to(folder)) for path in model_files(folder)]
    found = library_files(paths, "the model", takes_pickles=True)
    return folder / found[0] if found else None


def model_files(folder: Path) -> list[Path]:
    """The files below a folder, sorted, without the cache's own.

    Those are hidden, such as a library's partial download, and may vanish meanwhile.
    """
    found = []
    for parent, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        found += [Path(parent, name) for name in names if not name.startswith(".")]
    return sorted(path for path in found if path.is_file())


def engine_of(folder: Path) -> Engine:
    """The engine of the model whose small files are in `folder`; raises ModelInvalid."""
    if (library := library_path(folder)) is not None:
        return library_engine(library)
    if (program := program_path(folder)) is not None:
        from runtime.engines.program import ProgramEngine

        return ProgramEngine(program)
    if is_pipeline(folder):
        from runtime.engines.images import PipelineEngine

        return PipelineEngine()
    check_is_whole(folder)
    return NetworkEngine()


def check_is_whole(folder: Path) -> None:
    """Raise ModelInvalid if the folder holds an adapter: its model names no base."""
    if (folder / ADAPTER_CONFIG).exists() and not (folder / "config.json").exists():
        raise ModelInvalid(
            f"the model is an adapter ({ADAPTER_CONFIG}, no config.json): declare its base as a"
            " model of the namespace, and name that with the annotation pilotlight.io/base-model"
        )


def estimator_path(folder: Path) -> Path | None:
    """The folder's estimator of scikit-learn, None for others; raises ModelInvalid for several."""
    found = library_path(folder)
    return found if found is not None and found.suffix in ESTIMATOR_SUFFIXES else None


def engine_name(path: Path) -> str:
    """The engine's name of a library's file, an estimator's included; raises ModelInvalid."""
    return "sklearn" if path.suffix in ESTIMATOR_SUFFIXES else library_engine(path).name


def library_engine(path: Path) -> Engine:
    """The engine that reads the file, as found by `library_path`; raises ModelInvalid.

    Estimators of scikit-learn have one of their own: `EstimatorEngine`.
    """
    if path.suffix == ONNX_SUFFIX:
        from runtime.engines.libraries.onnx_engine import onnx_engine

        return onnx_engine(path)
    if path.suffix == GGUF_SUFFIX:
        raise EngineMissing(
            f"{path.name} needs llama.cpp: give the pods --llama-server PATH, and leave out"
            " pilotlight.io/engine: own"
        )
    from runtime.engines.libraries.library import lightgbm_engine, xgboost_engine

    with path.open("rb") as file:
        start = file.read(len(LIGHTGBM_START))
    if start == LIGHTGBM_START:
        return lightgbm_engine(path)
    if path.suffix == LIGHTGBM_SUFFIX:
        raise ModelInvalid(f"{path.name} does not begin as a model of LightGBM does ('tree')")
    return xgboost_engine(path)


def check_format(declared: str, folder: Path) -> None:
    """Raise ModelInvalid if the folder's model is not of the format that is declared."""
    allowed = _ENGINES_OF_FORMAT.get(declared)
    if allowed is None:
        return
    library = library_path(folder)
    found = engine_of(folder).name if library is None else engine_name(library)
    if found not in allowed:
        raise ModelInvalid(
            f"the model is declared as {declared}, but its files are of {found}; allowed are files"
            f" of {' and '.join(allowed)}: change modelFormat, or the files at storageUri"
        )
