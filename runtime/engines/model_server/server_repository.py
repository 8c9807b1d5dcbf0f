"""The folder from which a model server reads its models: a folder per model that it has loaded.

Files are hard links of the disk cache's where the file system allows it, else copies. Folders of
others in the repository are left alone.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, Final

from runtime.errors import LoadFailed, ModelInvalid

MLSERVER: Final = "mlserver"
CONFIG: Final = "config.pbtxt"
SETTINGS: Final = "model-settings.json"
IMPLEMENTATIONS: Final[Mapping[str, str]] = {
    "sklearn": "mlserver_sklearn.SKLearnModel",
    "xgboost": "mlserver_xgboost.XGBoostModel",
    "lightgbm": "mlserver_lightgbm.LightGBMModel",
    "catboost": "mlserver_catboost.CatboostModel",
    "mlflow": "mlserver_mlflow.MLflowRuntime",
    "huggingface": "mlserver_huggingface.HuggingFaceRuntime",
    "alibi-detect": "mlserver_alibi_detect.AlibiDetectRuntime",
    "alibi-explain": "mlserver_alibi_explain.AlibiExplainRuntime",
    "onnx": "mlserver_onnx.OnnxModel",
}
"""MLServer's runtimes by `modelFormat`; whether one is installed, the server says."""
_SUFFIXES: Final = {
    "sklearn": (".joblib", ".pickle", ".pkl"),
    "xgboost": (".bst", ".json", ".ubj"),
    "lightgbm": (".bst", ".txt"),
    "catboost": (".cbm",),
    "onnx": (".onnx",),
}
_MODEL_SUFFIXES: Final = (".onnx", ".plan", ".pt", ".py", ".graphdef")
"""Of models in one file, which Triton expects under the name `model`."""
_MARK: Final = ".pilotlight"
_STAGING: Final = ".pilotlight-staging"
_LOCK: Final = ".pilotlight-lock"
_TOKEN = re.compile(r"\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*'|#[^\n]*|[{}\[\]<>:]|[\w.+-]+|\S")


def server_name(key: str) -> str:
    """The server's name of a model `namespace/name@generation`: unique in all namespaces."""
    return key.replace("/", "~").replace("@", "~")


class ServerRepository:
    """Methods block."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock: int | None = None

    def open(self, owner: str) -> None:
        """Take the folder for this pod, and remove what an earlier pod left; raises LoadFailed."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            lock = os.open(self.folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise LoadFailed(f"the repository {self.folder} cannot be written: {error}") from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            user = os.pread(lock, 200, 0).decode(errors="replace") or "another process"
            os.close(lock)
            raise LoadFailed(
                f"the repository {self.folder} is used by {user}: each pod needs a model server and"
                " a repository of its own"
            ) from error
        os.ftruncate(lock, 0)
        os.pwrite(lock, owner.encode(), 0)
        self._lock = lock
        shutil.rmtree(self.folder / _STAGING, ignore_errors=True)
        for mark in self.folder.glob(f"*/{_MARK}"):
            shutil.rmtree(mark.parent, ignore_errors=True)

    def close(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def place(
        self, name: str, source: Path, files: Sequence[str], *, model_format: str, server: str
    ) -> None:
        """Make a model's files appear under its name; raises LoadFailed.

        Args:
            name: the server's name of the model.
            source: the folder of the files.
            files: their paths below it.
            model_format: as declared.
            server: the name that the server gives itself.
        """
        staged = self.folder / _STAGING / name
        target = self.folder / name
        try:
            shutil.rmtree(staged, ignore_errors=True)
            staged.mkdir(parents=True)
            for path, place in _layout(files, is_mlserver=server == MLSERVER):
                _put(source / path, staged / place, name)
            if server == MLSERVER and not (staged / SETTINGS).exists():
                settings = _settings(name, model_format, [place for place in files if place])
                (staged / SETTINGS).write_text(json.dumps(settings))
            (staged / _MARK).touch()
            shutil.rmtree(target, ignore_errors=True)
            staged.rename(target)
        except OSError as error:
            shutil.rmtree(staged, ignore_errors=True)
            raise LoadFailed(f"{name} cannot be put into {self.folder}: {error}") from error

    def hide_loaded(self, name: str) -> None:
        """Remove MLServer's settings of a loaded model, which it has read.

        For each load it reads those of all models in its repository: with 50 of them a load took
        165 ms of its CPU time, 3 ms for each (`benchmarks.formats.many_models`).
        """
        (self.folder / name / SETTINGS).unlink(missing_ok=True)

    def remove(self, name: str) -> None:
        shutil.rmtree(self.folder / name, ignore_errors=True)


def _layout(files: Sequence[str], *, is_mlserver: bool) -> Iterator[tuple[str, str]]:
    """Each file with its place: MLServer's as they are, others' below a folder of their version.

    A folder that holds one model's folder (KServe's form for Triton) is that model's.
    """
    own = (SETTINGS,) if is_mlserver else (CONFIG,)
    prefix = _model_prefix(files, own[0])
    inner = [(path, path.removeprefix(prefix)) for path in files if path.startswith(prefix)]
    if is_mlserver or any(
        place.partition("/")[0].isdecimal() and "/" in place for _, place in inner
    ):
        yield from inner
        return
    has_config = any(place == CONFIG for _, place in inner)
    models = [place for _, place in inner if place.endswith(_MODEL_SUFFIXES)]
    for path, place in inner:
        if place == CONFIG or (has_config and place.endswith(".txt")):
            yield path, place
        elif not has_config and len(models) == 1 and place == models[0] and "/" not in place:
            yield path, f"1/model{PurePosixPath(place).suffix}"
        else:
            yield path, f"1/{place}"


def _model_prefix(files: Sequence[str], config: str) -> str:
    """The only inner folder that holds a model's configuration, with a slash; else empty."""
    found = [path for path in files if PurePosixPath(path).name == config]
    if config in found or len(found) != 1:
        return ""
    return found[0].removesuffix(config)


def _put(source: Path, target: Path, name: str) -> None:
    """Link a file, or copy it; a configuration is written anew with the model's name."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.name in {CONFIG, SETTINGS}:
        target.write_text(_renamed(source, name))
        return
    try:
        os.link(source, target)
    except OSError:  # another file system, or one without links
        shutil.copyfile(source, target)


def _renamed(source: Path, name: str) -> str:
    try:
        text = source.read_text()
    except UnicodeDecodeError as error:
        raise ModelInvalid(f"{source.name} is no text: {error}") from error
    if source.name == CONFIG:
        return rename_config(text, name)
    try:
        document = json.loads(text)
        return json.dumps({**document, "name": name})
    except (ValueError, TypeError) as error:
        raise ModelInvalid(f"{source.name} is no JSON object: {error}") from error


def rename_config(text: str, name: str) -> str:
    """Triton's configuration with the top-level `name`, if it has one, replaced."""
    depth, previous = 0, ["", ""]
    for token in _TOKEN.finditer(text):
        word = token.group()
        if word.startswith("#"):
            continue
        if word in "{[<":
            depth += 1
        elif word in "}]>":
            depth -= 1
        elif depth == 0 and previous == ["name", ":"] and word[0] in "\"'":
            return f'{text[: token.start()]}"{name}"{text[token.end() :]}'
        previous = [previous[1], word]
    return text


def _settings(name: str, model_format: str, files: Sequence[str]) -> dict[str, Any]:
    """MLServer's settings of a model without any; raises ModelInvalid."""
    implementation = IMPLEMENTATIONS.get(model_format)
    if implementation is None:
        raise ModelInvalid(
            f"MLServer's runtime for modelFormat {model_format!r} is not known here: put a"
            f" {SETTINGS} with its implementation beside the model, or declare one of"
            f" {', '.join(IMPLEMENTATIONS)}"
        )
    suffixes = _SUFFIXES.get(model_format, ())
    found = [path for path in files if path.endswith(suffixes)] if suffixes else []
    uri = f"./{found[0]}" if len(found) == 1 else "."
    return {"name": name, "implementation": implementation, "parameters": {"uri": uri}}
