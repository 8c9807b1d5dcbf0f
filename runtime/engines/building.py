"""The engine of a model's folder, by the files in it. Imports optional engines on first use."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from runtime.engines.engine import Engine, ModelFolder
from runtime.engines.networks.network_engine import NetworkEngine
from runtime.errors import ModelInvalid
from runtime.storage.library_files import (
    CODE_SUFFIXES,
    LIGHTGBM_SUFFIX,
    ONNX_SUFFIX,
    PICKLE_ADVICE,
    SKOPS_SUFFIX,
    library_files,
)
from runtime.storage.listing import PIPELINE_INDEX, PROGRAM_SUFFIX

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from registry.domain.model import Task
    from runtime.engines.skeletons import Skeleton
    from runtime.weights.safetensors_files import StoredTensor

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
    if (folder / "config.json").exists():  # spares the search
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
        from runtime.engines.programs.program_engine import ProgramEngine

        return ProgramEngine(program)
    if is_pipeline(folder):
        from runtime.engines.images.pipeline_engine import PipelineEngine

        return PipelineEngine()
    return NetworkEngine()


def pickle_path(folder: Path) -> Path | None:
    """The folder's pickled estimator, None for other models; raises ModelInvalid for several."""
    found = library_path(folder)
    return found if found is not None and found.suffix in CODE_SUFFIXES else None


def engine_name(path: Path) -> str:
    """The engine's name of a library's file, a pickle's included; raises ModelInvalid."""
    return "sklearn" if path.suffix in CODE_SUFFIXES else library_engine(path).name


def library_engine(path: Path) -> Engine:
    """The engine that reads the file, as found by `library_path`; raises ModelInvalid."""
    if path.suffix in CODE_SUFFIXES:
        raise ModelInvalid(f"{path.name}: {PICKLE_ADVICE}")
    if path.suffix == ONNX_SUFFIX:
        from runtime.engines.libraries.onnx_engine import OnnxEngine

        return OnnxEngine(path)
    if path.suffix == SKOPS_SUFFIX:
        from runtime.engines.libraries.sklearn_engine import SklearnEngine

        return SklearnEngine(path)
    with path.open("rb") as file:
        start = file.read(len(LIGHTGBM_START))
    if start == LIGHTGBM_START:
        from runtime.engines.libraries.lightgbm_engine import LightgbmEngine

        return LightgbmEngine(path)
    if path.suffix == LIGHTGBM_SUFFIX:
        raise ModelInvalid(f"{path.name} does not begin as a model of LightGBM does ('tree')")
    from runtime.engines.libraries.xgboost_engine import XgboostEngine

    return XgboostEngine(path)


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


def build_skeleton(
    folder: Path,
    declared: Task | None,
    tensors: Sequence[StoredTensor],
    *,
    key: str,
    device: torch.device,
    threads: int = 1,
) -> Skeleton:
    """A skeleton for weights of these names and shapes; raises LoadFailed. Blocks."""
    model = ModelFolder(folder, declared, tensors)
    return engine_of(folder).build_skeleton(model, key=key, device=device, threads=threads)
