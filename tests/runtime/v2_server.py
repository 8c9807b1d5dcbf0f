"""A server that speaks V2 with the repository extension, as Triton's documents have it.

Run as a program: `python -m tests.runtime.v2_server --repository DIR --port N`.
It is written from Triton's protocol (model repository, binary tensor data, metrics) and is not
Triton. A model is a folder with a version folder; what it does is chosen by a file
`behaviour` in its version's folder:

- `sum`: OUTPUT0 is the sum of each row of INPUT0 (FP32, [-1, 4]).
- `refuse`: the load is refused with 400. `load-hang`: the load never ends.
- `hang`: an inference never ends. `die`: an inference ends the process as SIGKILL does.
- `crash`: an inference answers 500.
- `deaf`: as `sum`, but the server answers nothing else for DEAF_S.
"""

import argparse
import json
import os
import re
import signal
import threading
import time
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np

from tests.http_server import Handler

LENGTH_HEADER = "Inference-Header-Content-Length"
FEATURES = 4
DEAF_S = 9.0
MEMORY_PER_MODEL = 3 * 2**20
INPUT = {"name": "INPUT0", "datatype": "FP32", "shape": [-1, FEATURES]}
OUTPUT = {"name": "OUTPUT0", "datatype": "FP32", "shape": [-1]}
_NAME = re.compile(r'^name: "([^"]*)"', re.MULTILINE)


class _Refused(Exception):
    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class Models:
    """The loaded models, and what each does."""

    def __init__(self, repository: Path, *, is_binary: bool, delay_s: float) -> None:
        self.repository = repository
        self.is_binary = is_binary
        self.delay_s = delay_s
        self.loaded: dict[str, str] = {}
        self.is_hung = False
        self.requests: list[str] = []

    def load(self, name: str) -> None:
        folder = self.repository / name
        if not folder.is_dir():
            raise _Refused(400, f"failed to load '{name}', failed to poll from model repository")
        config = folder / "config.pbtxt"
        named = _NAME.search(config.read_text()) if config.exists() else None
        if named is not None and named.group(1) != name:
            raise _Refused(
                400,
                f"unexpected directory name '{name}' for model '{named.group(1)}', directory name"
                " must equal model name",
            )
        versions = [path for path in folder.iterdir() if path.is_dir() and path.name.isdecimal()]
        if not versions:
            raise _Refused(400, f"failed to load '{name}', at least one version must be available")
        version = max(versions, key=lambda path: int(path.name))
        does = (version / "behaviour").read_text().strip()
        if does == "refuse":
            raise _Refused(400, f"failed to load '{name}', unsupported model")
        if does == "load-hang":
            threading.Event().wait()
        self.loaded[name] = does

    def infer(self, name: str, document: dict[str, Any], tail: bytes) -> np.ndarray[Any, Any]:
        does = self.loaded.get(name)
        if does is None:
            raise _Refused(404, f"Request for unknown model: '{name}' is not found")
        if does == "hang":
            threading.Event().wait()
        if does == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if does == "deaf":
            self.is_hung = True
            threading.Event().wait(DEAF_S)
            self.is_hung = False
        if does == "crash":
            raise _Refused(500, "the backend failed")
        time.sleep(self.delay_s)
        entries = document.get("inputs") or []
        if [entry.get("name") for entry in entries] != [INPUT["name"]]:
            names = [entry.get("name") for entry in entries]
            raise _Refused(400, f"unexpected inference inputs {names} for model '{name}'")
        entry = entries[0]
        if entry.get("datatype") != "FP32":
            raise _Refused(400, f"inference input data-type is '{entry.get('datatype')}', not FP32")
        size = (entry.get("parameters") or {}).get("binary_data_size")
        values = (
            np.frombuffer(tail[:size], np.float32)
            if size is not None
            else np.asarray(entry["data"], np.float32)
        )
        shape = entry["shape"]
        if len(shape) != 2 or shape[1] != FEATURES or values.size != shape[0] * shape[1]:
            raise _Refused(400, f"unexpected shape for input 'INPUT0': {shape}, expecting [-1,4]")
        total: np.ndarray[Any, Any] = values.reshape(shape).sum(axis=1).astype(np.float32)
        return total


class _Handler(Handler):
    models: Models

    def do_GET(self) -> None:
        self._answer(self._get)

    def do_POST(self) -> None:
        body = self.body()
        self._answer(lambda: self._post(body))

    def _answer(self, work: Any) -> None:
        while self.models.is_hung:
            threading.Event().wait(0.01)
        try:
            status, content, headers = work()
        except _Refused as error:
            status, headers = error.status, {}
            content = json.dumps({"error": str(error)}).encode()
        self.answer(status, content, headers)

    def _get(self) -> tuple[int, bytes, dict[str, str]]:
        path = self.path.split("/")[1:]
        match path:
            case ["v2"]:
                extensions = ["model_repository", *(["binary_tensor_data"] * self.models.is_binary)]
                return _json({"name": "as-written", "version": "1", "extensions": extensions})
            case ["v2", "health", "live" | "ready"]:
                return 200, b"", {}
            case ["v2", "models", name, "ready"]:
                return (200 if name in self.models.loaded else 400), b"", {}
            case ["v2", "models", name]:
                if name not in self.models.loaded:
                    raise _Refused(400, f"Request for unknown model: '{name}' is not found")
                return _json(
                    {
                        "name": name,
                        "versions": ["1"],
                        "platform": "as-written",
                        "inputs": [INPUT],
                        "outputs": [OUTPUT],
                    }
                )
            case ["metrics"]:
                used = 2**28 + MEMORY_PER_MODEL * len(self.models.loaded)
                return 200, f'nv_gpu_memory_used_bytes{{gpu_uuid="GPU-0"}} {used:e}\n'.encode(), {}
            case ["requests"]:
                return _json(self.models.requests)
        raise _Refused(404, "no such path")

    def _post(self, body: bytes) -> tuple[int, bytes, dict[str, str]]:
        path = self.path.split("/")[1:]
        self.models.requests.append(self.path)
        match path:
            case ["hang"]:
                self.models.is_hung = True
                return 200, b"", {}
            case ["forget"]:
                self.models.loaded.clear()
                return 200, b"", {}
            case ["v2", "repository", "index"]:
                return _json([{"name": name, "state": "READY"} for name in self.models.loaded])
            case ["v2", "repository", "models", name, "load"]:
                self.models.load(name)
                return 200, b"", {}
            case ["v2", "repository", "models", name, "unload"]:
                self.models.loaded.pop(name, None)
                return 200, b"", {}
            case ["v2", "models", name, "infer"]:
                return self._infer(name, body)
        raise _Refused(404, "no such path")

    def _infer(self, name: str, body: bytes) -> tuple[int, bytes, dict[str, str]]:
        length = self.headers.get(LENGTH_HEADER)
        if length is not None and not self.models.is_binary:
            raise _Refused(400, "binary tensors are not supported")
        head = body if length is None else body[: int(length)]
        try:
            document = json.loads(head)
        except ValueError as error:
            raise _Refused(400, f"failed to parse the request JSON buffer: {error}") from error
        values = self.models.infer(name, document, body[len(head) :])
        output: dict[str, Any] = {"name": "OUTPUT0", "datatype": "FP32", "shape": [len(values)]}
        answer = {"model_name": name, "model_version": "1", "outputs": [output]}
        if "id" in document:
            answer["id"] = document["id"]
        if (document.get("parameters") or {}).get("binary_data_output"):
            output["parameters"] = {"binary_data_size": values.nbytes}
            content = json.dumps(answer).encode()
            headers = {LENGTH_HEADER: str(len(content)), "content-type": "application/octet-stream"}
            return 200, content + values.tobytes(), headers
        output["data"] = values.tolist()
        return _json(answer)


def _json(document: object) -> tuple[int, bytes, dict[str, str]]:
    return 200, json.dumps(document).encode(), {"content-type": "application/json"}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--repository", type=Path, required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--no-binary", action="store_true")
    parser.add_argument("--delay", type=float, default=0.0, help="of each inference, in seconds")
    arguments = parser.parse_args()
    _Handler.models = Models(
        arguments.repository, is_binary=not arguments.no_binary, delay_s=arguments.delay
    )
    server = ThreadingHTTPServer(("127.0.0.1", arguments.port), _Handler)
    server.daemon_threads = True
    server.serve_forever()


if __name__ == "__main__":
    main()
