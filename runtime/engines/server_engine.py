"""Models that a model server runs: brings their files to its repository, loads and unloads them.

The repository has a folder per model that is loaded.
Files are hard links of the disk cache's where the file system allows it, else copies. Folders of
others in the repository are left alone.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Final

import torch

from common.inference_protocol import PodError
from registry.domain.model import ModelSpec
from runtime.engines.engine import Engine, LoadedSkeleton, ModelFolder, Skeleton
from runtime.engines.server_process import ServerInfo, ServerMemory, ServerSignature, V2Client
from runtime.errors import LoadFailed, ModelInvalid, ServerUnavailable

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


logger = logging.getLogger(__name__)

READY_INTERVAL_S: Final = 0.05
LOAD_TURN_S: Final = 5.0
"""How long a load waits for another one's end; after that, neither's growth is its own."""
UNLOADS: Final = 4
"""Unloads at once."""
UNLOAD_WAIT_S: Final = 5.0
"""How long a load waits for other models' unloads, whose memory it needs."""


@dataclass(frozen=True, slots=True)
class ServerModel:
    """A model that the server has loaded."""

    name: str
    """The server's name of it."""
    key: str
    memory_bytes: int


class ModelServer:
    """A server beside the pod, with its repository. Methods block unless they say otherwise."""

    def __init__(
        self,
        client: V2Client,
        repository: ServerRepository,
        memory: ServerMemory,
        *,
        load_timeout_s: float,
    ) -> None:
        self.client = client
        self.repository = repository
        self.is_up = False
        """Whether it answers; set by the watch of the pod."""
        self.info: ServerInfo | None = None
        """Set when it has answered for the first time."""
        self.on_model_lost: Callable[[str], None] = lambda key: None
        """Called on the event loop with the key of a model that the server no longer has."""
        self.on_suspect: Callable[[], None] = lambda: None
        """Called on the event loop when a request found the server dead."""
        self._memory = memory
        self._load_timeout_s = load_timeout_s
        self._turn = threading.Lock()
        """Of a load whose growth is measured."""
        self._loading: set[str] = set()
        self._inferring_s: list[float] = []
        """The time limits of inferences under way."""
        self._unloads = ThreadPoolExecutor(UNLOADS, "unload")
        self._unloading: dict[str, Future[None]] = {}
        self._closed = threading.Event()
        self._memory_of: dict[str, int] = {}
        self._signatures: dict[str, ServerSignature] = {}

    def memory_of(self, key: str) -> int:
        """Memory that the model took when it was last loaded; 0: it has not been."""
        return self._memory_of.get(key, 0)

    def signature(self, key: str) -> ServerSignature | None:
        """The inputs and outputs that the server told when it last loaded the model."""
        return self._signatures.get(key)

    @contextmanager
    def inferring(self, limit_s: float) -> Iterator[None]:
        """An inference that may take so long; on the event loop."""
        self._inferring_s.append(limit_s)
        try:
            yield
        finally:
            self._inferring_s.remove(limit_s)

    @property
    def busy_limit_s(self) -> float:
        """Longest time for which it may be deaf: some do nothing else in a load or inference.

        0: no call is under way.
        """
        loads_s = [self._load_timeout_s] if self._loading else []
        return max([*self._inferring_s, *loads_s], default=0.0)

    def load(
        self, spec: ModelSpec, folder: Path, files: Sequence[str], size_bytes: int
    ) -> ServerModel:
        """Load the model, and wait until the server says that it is ready; raises LoadFailed.

        Raises ServerUnavailable if the server is away, which says nothing about the model.
        """
        name = server_name(spec.key)
        self._wait_unloaded(name)
        info = self._require_up()
        has_turn = self._turn.acquire(timeout=LOAD_TURN_S)
        self._loading.add(name)
        try:
            self.repository.place(name, folder, files, model_format=spec.format, server=info.name)
            growth = self._load_placed(name, spec.key)
        except PodError:
            self.unload_soon(name)  # the server may still be at it
            raise
        finally:
            self._loading.discard(name)
            if has_turn:
                self._turn.release()
        # A later load may fill memory that the process had kept, and then shows no growth.
        measured = growth if has_turn else 0
        self._memory_of[spec.key] = max(measured, size_bytes, self.memory_of(spec.key))
        return ServerModel(name, spec.key, self._memory_of[spec.key])

    def _load_placed(self, name: str, key: str) -> int:
        """Load from the repository; returns the bytes by which the server has grown."""
        before = self._memory.used_bytes()
        self.client.load(name)
        self._wait_ready(name)
        self._signatures[key] = self.client.signature(name)
        self.repository.hide_loaded(name)
        after = self._memory.used_bytes()
        return 0 if before is None or after is None else max(0, after - before)

    def _require_up(self) -> ServerInfo:
        if not self.is_up or self.info is None:
            raise ServerUnavailable(f"the model server at {self.client.url} does not answer")
        return self.info

    def _wait_ready(self, name: str) -> None:
        deadline_s = time.monotonic() + self._load_timeout_s
        while not self.client.is_model_ready(name):
            if self._closed.wait(READY_INTERVAL_S):
                raise ServerUnavailable("the pod shuts down")
            if time.monotonic() >= deadline_s:
                raise LoadFailed(
                    f"the model server did not make {name} ready within {self._load_timeout_s:g} s"
                )

    def _wait_unloaded(self, name: str) -> None:
        """Wait until its own unload has ended, and a while for others', whose memory it needs."""
        wait(list(self._unloading.values()), UNLOAD_WAIT_S)
        own = self._unloading.get(name)
        if own is not None and wait([own], self._load_timeout_s).not_done:
            raise LoadFailed(f"the model server has not unloaded {name}, which it had before")

    def unload_soon(self, name: str) -> None:
        """Unload in the background, before any later load of it; does not block."""
        if self._closed.is_set():
            return
        unloading = self._unloads.submit(self._unload, name)
        self._unloading[name] = unloading
        unloading.add_done_callback(lambda _: self._unloading.pop(name, None))

    def _unload(self, name: str) -> None:
        try:
            self.client.unload(name)
        except (LoadFailed, ServerUnavailable) as error:
            logger.info("not unloaded at the server", extra={"model": name, "error": error})
        self.repository.remove(name)

    def close(self) -> None:
        """Wait for unloads under way."""
        self._closed.set()
        wait(list(self._unloading.values()), UNLOAD_WAIT_S)
        self._unloads.shutdown(wait=False, cancel_futures=True)
        self.repository.close()


class ServerEngine(Engine):
    """The engine of one model in a pod with a model server."""

    name = "model server"
    uses_device = False
    reads_files = True

    def __init__(self, server: ModelServer, spec: ModelSpec) -> None:
        self._server = server
        self._spec = spec

    def skeleton_key(self, model: ModelFolder) -> str:
        return f"{self.name} {self._spec.key}"

    def build_skeleton(
        self, model: ModelFolder, *, key: str, device: torch.device, threads: int
    ) -> Skeleton:
        names = [file.name for file in model.tensors]
        size_bytes = sum(file.size_bytes for file in model.tensors)
        return LoadedSkeleton(
            key,
            lambda _weights: self._server.load(self._spec, model.path, names, size_bytes),
            lambda loaded: self._server.unload_soon(loaded.name),
            has_inferred=True,
        )

    def working_bytes(self, weight_bytes: int) -> int:
        """What it took when it was last loaded, beyond the size of its files; 0 before."""
        return max(0, self._server.memory_of(self._spec.key) - weight_bytes)
