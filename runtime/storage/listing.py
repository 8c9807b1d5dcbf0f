"""The files of a model in storage: which are small assets, which are weights, and what is refused.

Owns the rules on paths, kinds and sizes of files.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from runtime.errors import ModelInvalid, ModelUnsupported

# Formats that a library reads by itself. A folder with a model of transformers, a pipeline or an
# exported program is none of these.

ONNX_SUFFIX = ".onnx"
GGUF_SUFFIX = ".gguf"
"""llama.cpp's."""
PROJECTOR_PREFIX = "mmproj"
"""Of the file beside a model that makes its tokens from images."""
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
ESTIMATOR_SUFFIXES = (SKOPS_SUFFIX, *CODE_SUFFIXES)
"""Of scikit-learn's models."""
PICKLE_ADVICE = (
    "pickled models are not served, since reading one runs code that came with it; save the model"
    " with skops.io.dump(model, 'model.skops'), or convert it to ONNX (model.onnx);"
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
_PART = re.compile(r"-\d{5}-of-\d{5}(?=\.gguf$)")
_NOT_DATA = (".md", ".py", ".yaml", ".yml", ".pbtxt", ".csv", ".parquet", ".safetensors", ".pt2",
             ".h5", ".msgpack", SKOPS_SUFFIX, *CODE_SUFFIXES)  # fmt: skip
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
    has_weights = any(path.endswith(_OTHER_SUFFIXES) for path in paths)
    if not has_weights and (gguf := [path for path in paths if path.endswith(GGUF_SUFFIX)]):
        return _gguf_files(gguf, uri)
    if names & _OTHER_MODELS or has_weights:
        return ()
    paths = in_highest_version(paths, (*LIBRARY_SUFFIXES, *CODE_SUFFIXES))
    if found := model_of_suffixes(paths, LIBRARY_SUFFIXES, uri):
        return found
    if code := [path for path in paths if path.endswith(CODE_SUFFIXES)]:
        if takes_pickles:
            return (_only(code, uri),)
        raise ModelUnsupported(f"{uri} has {code[:4]}: {PICKLE_ADVICE}")
    return ()


def _gguf_files(paths: Sequence[str], uri: str) -> tuple[str, ...]:
    """A model's file, or its parts in their order, then its projector; raises ModelInvalid."""
    projectors = [path for path in paths if _name(path).startswith(PROJECTOR_PREFIX)]
    models = [path for path in paths if path not in projectors]
    are_parts = len({_PART.sub("", path) for path in models}) == 1 and len(models) > 1
    return (*(models if are_parts else (_only(models, uri),)), *projectors[:1])


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


ASSET_SUFFIXES = frozenset(
    {".json", ".txt", ".model", ".jinja", ".spm", ".codes", ".tokenizer", ".tiktoken"}
)
WEIGHT_SUFFIX = ".safetensors"
PROGRAM_SUFFIX = ".pt2"
PIPELINE_INDEX = "model_index.json"
ADAPTER_CONFIG = "adapter_config.json"
"""Of a LoRA adapter in PEFT's format, whose base has the `config.json`."""
MODULES = "modules.json"
"""Of sentence-transformers: the modules after the network, each in a folder of its own."""
NETWORK_FILES = frozenset({"config.json", PIPELINE_INDEX, ADAPTER_CONFIG})
"""One of these is in the folder of every network of transformers or diffusers."""
PIPELINE_PARTS: Mapping[str, str] = {
    "text_encoder": "model.safetensors",
    "unet": "diffusion_pytorch_model.safetensors",
    "vae": "diffusion_pytorch_model.safetensors",
}
"""The parts of a pipeline that have weights, with diffusers' names of their files."""
TORCHSCRIPT_SUFFIXES = (".pt", ".pth", ".torchscript")
PICKLE_SUFFIXES = frozenset({".bin", ".pt", ".pth", ".ckpt", ".pkl", ".h5", ".msgpack"})

UNSERVED: Mapping[str, tuple[str, str]] = {
    "saved_model.pb": ("TensorFlow's SavedModel", "convert it to ONNX with tf2onnx"),
    ".pdmodel": ("Paddle's models", "convert it to ONNX with paddle2onnx"),
    ".pmml": ("PMML", "export the model to ONNX from the library that trained it"),
    ".cbm": ("CatBoost's models", "save it with format='onnx'"),
    ".mar": ("TorchServe's archives", "export the model with torch.export to a .pt2 file"),
    ".plan": ("TensorRT's plans", "serve the ONNX file that it was made from"),
}
"""By the end of a file's name: the format, and the way out."""
MAX_FILES = 1_000
MAX_ASSET_BYTES = 256 * 1024**2
MAX_LISTED = 10 * MAX_FILES
MAX_WEIGHT_BYTES = 4 * 1024**4


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """One file of a model in storage; `path` is relative to the model's own folder."""

    path: str
    size_bytes: int
    version: str = ""
    """Changes with the content: an ETag, or a modification time."""


def asset_files(
    files: Iterable[RemoteFile], uri: str, *, takes_pickles: bool = False
) -> tuple[RemoteFile, ...]:
    """The small files: configuration, tokenizer, index; raises ModelInvalid.

    An exported program and a library's file count too, since one file holds signature and weights.
    """
    files = tuple(files)
    if library := _library_files({file.path: file for file in files}, uri, takes_pickles):
        _check_limits(library, uri, "files of weights", MAX_WEIGHT_BYTES)
        return library
    modules = _module_weights(file.path for file in files)
    assets = tuple(
        file
        for file in files
        if PurePosixPath(file.path).suffix in ASSET_SUFFIXES or file.path in modules
    )
    _check_limits(assets, uri, "small files", MAX_ASSET_BYTES)
    if (program := _program_file(files, uri)) is not None:
        _check_limits((program,), uri, "files of weights", MAX_WEIGHT_BYTES)
        return (*assets, program)
    if not NETWORK_FILES & {file.path for file in assets}:
        _check_not_nested({file.path for file in files}, uri)
        _check_not_torchscript(files, uri)
        _check_not_unserved(files, uri)
        found = sorted(file.path for file in files)[:8]
        raise ModelInvalid(f"{uri} has no config.json; found {found}")
    return assets


def _module_weights(paths: Iterable[str]) -> frozenset[str]:
    """Weights of modules after a network, which are as small as its other files."""
    found = set(paths)
    if MODULES not in found:
        return frozenset()
    folders = {path.partition("/")[0] for path in found if path.count("/") == 1}
    return (
        frozenset(
            f"{folder}/model{WEIGHT_SUFFIX}"
            for folder in folders
            if not folder.endswith("_Transformer") and f"{folder}/config.json" in found
        )
        & found
    )


def _check_not_nested(paths: set[str], uri: str) -> None:
    nested = sorted(path for path in paths if path.endswith("_Transformer/config.json"))
    if MODULES in paths and nested:
        folder = nested[0].rpartition("/")[0]
        raise ModelInvalid(
            f"{uri} has its network in {folder}/, the older layout of sentence-transformers: move"
            f" the files there beside {MODULES}, and set the module's path in it to ''"
        )


def weight_files(
    files: Iterable[RemoteFile],
    uri: str,
    indexed: frozenset[str] | None,
    *,
    takes_pickles: bool = False,
) -> tuple[RemoteFile, ...]:
    """The files of weights; raises ModelInvalid.

    Args:
        files: all files of the model.
        uri: of the model, for errors.
        indexed: the files that the index of sharded weights names; None without an index.
        takes_pickles: whether a model may be a pickle of scikit-learn.
    """
    by_path = {file.path: file for file in files}
    chosen = _library_files(by_path, uri, takes_pickles) or _choose_weight_files(
        by_path, uri, indexed
    )
    _check_limits(chosen, uri, "files of weights", MAX_WEIGHT_BYTES)
    return chosen


def _choose_weight_files(
    by_path: Mapping[str, RemoteFile], uri: str, indexed: frozenset[str] | None
) -> tuple[RemoteFile, ...]:
    if (program := _program_file(by_path.values(), uri)) is not None:
        return (program,)
    if PIPELINE_INDEX in by_path:
        return _pipeline_weight_files(by_path, uri)
    if indexed is not None:
        missing = sorted(indexed - by_path.keys())
        if missing:
            raise ModelInvalid(f"{uri} lacks {missing}, named by its index of weights")
        return tuple(by_path[path] for path in sorted(indexed))
    if "model.safetensors" in by_path:
        return (by_path["model.safetensors"],)
    found = [path for path in by_path if path.endswith(WEIGHT_SUFFIX) and "/" not in path]
    if len(found) == 1:
        return (by_path[found[0]],)
    if found:
        raise ModelInvalid(f"{uri} has several files of weights and no index: {sorted(found)}")
    pickled = sorted(path for path in by_path if PurePosixPath(path).suffix in PICKLE_SUFFIXES)
    if pickled:
        raise ModelUnsupported(
            f"{uri} has weights only as {pickled}, which can run code when they are read;"
            " only safetensors are loaded: convert the model to safetensors"
        )
    others = sorted(path for path in by_path if path.endswith(ONNX_SUFFIX))[:4]
    hint = f"; to serve {others} declare modelFormat onnx" if others else ""
    raise ModelInvalid(f"{uri} has no *.safetensors file; found {sorted(by_path)[:8]}{hint}")


def _pipeline_weight_files(by_path: Mapping[str, RemoteFile], uri: str) -> tuple[RemoteFile, ...]:
    """One file per part of a pipeline with weights: the one in 32 bits where there are several."""
    files = []
    for part, name in PIPELINE_PARTS.items():
        if f"{part}/{name}" not in by_path:
            found = sorted(path for path in by_path if path.startswith(f"{part}/"))[:8]
            raise ModelInvalid(
                f"{uri} has no {part}/{name}; each part of a pipeline must have one safetensors"
                f" file under diffusers' own name. Found {found}"
            )
        files.append(by_path[f"{part}/{name}"])
    return tuple(files)


def _program_file(files: Iterable[RemoteFile], uri: str) -> RemoteFile | None:
    """The exported program, if the model is one; a model with safetensors is none."""
    paths = {PurePosixPath(file.path): file for file in files}
    programs = [file for path, file in paths.items() if path.suffix == PROGRAM_SUFFIX]
    if not programs or any(path.suffix == WEIGHT_SUFFIX for path in paths):
        return None
    if len(programs) > 1:
        raise ModelInvalid(
            f"{uri} has several programs: {sorted(file.path for file in programs)[:8]};"
            " a model must have one program, in a folder of its own"
        )
    return programs[0]


def _library_files(
    by_path: Mapping[str, RemoteFile], uri: str, takes_pickles: bool
) -> tuple[RemoteFile, ...]:
    found = library_files(by_path, uri, takes_pickles=takes_pickles)
    return tuple(by_path[path] for path in found)


def _check_not_unserved(files: Iterable[RemoteFile], uri: str) -> None:
    for file in files:
        for suffix, (kind, advice) in UNSERVED.items():
            if file.path.endswith(suffix):
                raise ModelUnsupported(
                    f"{uri} has {file.path}: no engine here reads {kind}; {advice}"
                )


def _check_not_torchscript(files: Iterable[RemoteFile], uri: str) -> None:
    found = sorted(file.path for file in files if file.path.endswith(TORCHSCRIPT_SUFFIXES))
    if found:
        raise ModelUnsupported(
            f"{uri} has {found[:4]}: TorchScript and pickled models are not served, since loading"
            " one runs code that came with it; export the model with torch.export.export and"
            f" torch.export.save to a {PROGRAM_SUFFIX} file"
        )


def _check_limits(files: tuple[RemoteFile, ...], uri: str, kind: str, max_bytes: int) -> None:
    total = sum(file.size_bytes for file in files)
    if len(files) > MAX_FILES or total > max_bytes:
        raise ModelInvalid(
            f"{uri} has {len(files)} {kind} of {total} bytes;"
            f" at most {MAX_FILES} files and {max_bytes} bytes are fetched"
        )


def every_file(files: Iterable[RemoteFile], uri: str) -> tuple[RemoteFile, ...]:
    """All files, for a server that reads what it knows; raises ModelInvalid."""
    files = tuple(files)
    if not files:
        raise ModelInvalid(f"{uri} has no files")
    _check_limits(files, uri, "files", MAX_WEIGHT_BYTES)
    return files


def checked_listing(files: Iterable[RemoteFile], uri: str) -> tuple[RemoteFile, ...]:
    """The files without hidden ones, by path; raises ModelInvalid if a path leaves the folder."""
    visible = []
    for file in files:
        path, parts = file.path, PurePosixPath(file.path).parts
        if ".." in parts or path.startswith("/") or "\\" in path or "\0" in path:
            raise ModelInvalid(f"{uri} has a file with a path outside its folder: {path!r}")
        if parts and not any(part.startswith(".") for part in parts):
            visible.append(file)
    return tuple(sorted(visible, key=lambda file: file.path))
