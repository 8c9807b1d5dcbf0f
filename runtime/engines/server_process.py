"""The model server beside a pod: V2 calls, its process (`--engine-command`), memory and settings.

Calls about models block and are made in threads; inference and health belong to the event loop.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import shlex
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from common.child_process import Command, KeptProcess
from common.http_client import HttpClient, Response, request_blocking, split_url
from common.http_connection import HttpError, NotConnected, TimedOut
from common.inference_protocol import BodyTooLarge, InvalidRequest, PodError
from runtime.errors import (
    InferenceFailed,
    LoadFailed,
    ModelInvalid,
    ServerLost,
    ServerUnavailable,
    SlotsFull,
)

CONNECT_TIMEOUT_S: Final = 2.0
CALL_TIMEOUT_S: Final = 10.0
"""Of a call that only asks."""
LIVENESS_TIMEOUT_S: Final = 2.0
IDLE_S: Final = 3.0
"""How long an unused connection is kept: uvicorn, MLServer's, closes one after 5 s."""
MAX_MESSAGE: Final = 500


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """What the server says of itself."""

    name: str
    version: str
    takes_binary: bool
    """Whether it speaks V2's extension for binary tensors."""


@dataclass(frozen=True, slots=True)
class ServerSignature:
    """A model's metadata: entries with name, datatype and shape; some servers have none."""

    inputs: Sequence[Mapping[str, Any]] = ()
    outputs: Sequence[Mapping[str, Any]] = ()
    platform: str = ""


class V2Client:
    """Connections to one server."""

    def __init__(self, url: str, *, load_timeout_s: float) -> None:
        self.url = url.rstrip("/")
        self._load_timeout_s = load_timeout_s
        self._address, self._prefix = split_url(self.url)
        self._client = HttpClient(
            max_idle_s=IDLE_S, connect_timeout_s=CONNECT_TIMEOUT_S, resends=False
        )

    def close(self) -> None:
        self._client.close()

    # About models; these block

    def load(self, name: str) -> None:
        """Load a model from the repository; raises LoadFailed, ServerUnavailable."""
        response = self._repository_call(name, "load", self._load_timeout_s)
        if response.is_success:
            return
        text = f"the model server refused to load the model: {message_of(response)}"
        raise ModelInvalid(text) if 400 <= response.status < 500 else LoadFailed(text)

    def unload(self, name: str) -> None:
        """Unload a model; raises LoadFailed, ServerUnavailable."""
        response = self._repository_call(name, "unload", self._load_timeout_s)
        if not response.is_success and response.status != HTTPStatus.NOT_FOUND:
            raise LoadFailed(f"the model server did not unload {name}: {message_of(response)}")

    def _repository_call(self, name: str, verb: str, timeout_s: float) -> Response:
        url = f"{self.url}/v2/repository/models/{name}/{verb}"
        headers = {"content-type": "application/json"}
        try:
            return request_blocking("POST", url, b"{}", timeout_s=timeout_s, headers=headers)
        except TimedOut as error:
            raise LoadFailed(
                f"the model server at {self.url} did not answer the {verb} of {name} within"
                f" {timeout_s:g} s"
            ) from error
        except HttpError as error:
            raise self._unavailable(error) from error

    def is_model_ready(self, name: str) -> bool:
        """Raises ServerUnavailable."""
        return self._get(f"/v2/models/{name}/ready").is_success

    def signature(self, name: str) -> ServerSignature:
        """A loaded model's metadata; raises LoadFailed, ServerUnavailable."""
        document = self._document(f"/v2/models/{name}")
        inputs, outputs = (
            [entry for entry in document.get(kind) or () if isinstance(entry, dict)]
            for kind in ("inputs", "outputs")
        )
        return ServerSignature(inputs, outputs, str(document.get("platform") or ""))

    def info(self) -> ServerInfo:
        """Raises LoadFailed if the server does not speak V2, ServerUnavailable."""
        document = self._document("/v2")
        extensions = document.get("extensions")
        known = [str(each) for each in extensions] if isinstance(extensions, list) else []
        return ServerInfo(
            str(document.get("name", "")),
            str(document.get("version", "")),
            any(each in known for each in ("binary_tensor_data", "binary_data")),
        )

    def _document(self, path: str) -> Mapping[str, Any]:
        response = self._get(path)
        try:
            document = response.json()
        except ValueError:
            document = None
        if not response.is_success or not isinstance(document, dict):
            raise LoadFailed(
                f"the model server at {self.url} does not speak V2: GET {path} gave"
                f" {response.status}, {message_of(response)}"
            )
        return document

    def _get(self, path: str) -> Response:
        try:
            return request_blocking("GET", self.url + path, timeout_s=CALL_TIMEOUT_S)
        except HttpError as error:
            raise self._unavailable(error) from error

    def _unavailable(self, error: Exception) -> ServerUnavailable:
        return ServerUnavailable(
            f"the model server at {self.url} does not answer: {type(error).__name__} {error}"
        )

    # On the event loop

    async def problem(self) -> str:
        """Why it is not live; empty: it is. Raises TimeoutError if it hangs."""
        path = "/v2/health/live"
        try:
            async with asyncio.timeout(LIVENESS_TIMEOUT_S):
                answer = await self._request("GET", path)
        except HttpError as error:
            return str(self._unavailable(error))
        if answer.is_success:
            return ""
        return f"the model server at {self.url} is not live: GET {path} gave {answer.status}"

    async def knows(self, name: str) -> bool:
        """Whether the model is loaded; True if the server does not answer."""
        try:
            async with asyncio.timeout(CALL_TIMEOUT_S):
                return (await self._request("GET", f"/v2/models/{name}/ready")).is_success
        except (HttpError, TimeoutError):
            return True

    async def infer(self, name: str, content: bytes, headers: Mapping[str, str]) -> Response:
        """A successful response; raises the error that a client gets for any other."""
        path = f"/v2/models/{name}/infer"
        try:
            answer = await self._request("POST", path, content, headers)
        except NotConnected as error:
            raise self._unavailable(error) from error
        except HttpError as error:
            raise ServerLost(
                f"the model server at {self.url} ended the connection in this inference: {error}"
            ) from error
        if not answer.is_success:
            raise error_of(answer)
        return answer

    async def _request(
        self, method: str, path: str, content: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> Response:
        return await self._client.request(
            method, self._address, self._prefix + path, headers, content
        )


def error_of(response: Response, server: str = "the model server") -> PodError:
    """The error for a server's response that is no success."""
    text, status = message_of(response), response.status
    match status:
        case HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
            return BodyTooLarge(f"{server} refused the request: {text}")
        case HTTPStatus.TOO_MANY_REQUESTS:
            return SlotsFull(f"{server} refused the request: {text}")
        case HTTPStatus.SERVICE_UNAVAILABLE | HTTPStatus.BAD_GATEWAY | HTTPStatus.GATEWAY_TIMEOUT:
            return ServerLost(f"{server} answered {status}: {text}")
    if 400 <= status < 500:
        return InvalidRequest(f"{server} refused the request ({status}): {text}")
    return InferenceFailed(f"{server} failed in the inference ({status}): {text}")


def message_of(response: Response) -> str:
    """The server's own words on one line: V2's `error`, FastAPI's `detail`, or its last line."""
    try:
        document = response.json()
    except ValueError:
        lines = [line.strip() for line in response.text.splitlines() if line.strip()]
        return lines[-1][:MAX_MESSAGE] if lines else "no text"
    for name in ("error", "detail", "message"):
        if isinstance(document, dict) and (found := document.get(name)):
            if isinstance(found, dict):  # OpenAI's
                found = found.get("message") or found
            text = found if isinstance(found, str) else json.dumps(found)
            return " ".join(text.split())[:MAX_MESSAGE]
    return response.text[:MAX_MESSAGE] or "no text"


logger = logging.getLogger(__name__)

STOP_TIMEOUT_S: Final = 5.0
_WITHHELD: Final = ("PILOTLIGHT_", "AWS_", "STORAGE_", "HF_TOKEN")
"""Variables with the pod's own credentials, which models of others' code must not read."""


def free_ports(count: int) -> list[int]:
    """Free ports of the loopback interface, each another one."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in sockets]
    finally:
        for each in sockets:
            each.close()


class ServerProcess(KeptProcess):
    """One process at a time, with the same ports for as long as the pod runs."""

    def __init__(self, command: str, repository: Path, log_file: Path | None) -> None:
        """`log_file`: for its output; None: the pod's own."""
        self.ports = free_ports(3)
        self.url = f"http://127.0.0.1:{self.ports[0]}"
        self.ended = asyncio.Event()
        """Set whenever the process has ended."""
        self._repository = repository
        words = [self.with_values(word) for word in shlex.split(command)]
        env = server_environment(os.environ)
        super().__init__(
            Command("model server", words, env, log_file, repository),
            on_end=self.ended.set,
            grace_s=STOP_TIMEOUT_S,
        )

    def with_values(self, text: str) -> str:
        """A text with the ports and the folder in place of their names."""
        values = dict(zip(("{port}", "{grpc_port}", "{metrics_port}"), self.ports, strict=True))
        for name, value in ({"{repository}": self._repository} | values).items():
            text = text.replace(name, str(value))
        return text

    def end_hung(self) -> None:
        """End a server that hangs; `run` starts it again."""
        logger.warning("model server hangs, it is killed")
        if self.child is not None:
            self.child.kill()


def server_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The pod's environment without its credentials."""
    return {name: value for name, value in environment.items() if not name.startswith(_WITHHELD)}


TIMEOUT_S: Final = 2.0
GPU_METRIC: Final = "nv_gpu_memory_used_bytes"
"""Triton's, per GPU."""
PROCESS_METRIC: Final = "process_resident_memory_bytes"
"""Of Prometheus' clients, MLServer's among them."""
_SAMPLE: Final = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{[^}]*\})?\s+(\S+)", re.MULTILINE)


class ServerMemory:
    """Methods block."""

    def __init__(
        self, metrics_url: str, process_id: Callable[[], int | None] = lambda: None
    ) -> None:
        """`process_id`: of the server, if this pod started it."""
        self._metrics_url = metrics_url
        self._process_id = process_id

    def used_bytes(self) -> int | None:
        """Bytes of the server and its models; None where they cannot be seen."""
        if self._metrics_url:
            return self._by_metrics()
        pid = self._process_id()
        return session_bytes(pid) or None if pid else None

    def _by_metrics(self) -> int | None:
        try:
            text = request_blocking("GET", self._metrics_url, timeout_s=TIMEOUT_S).text
        except HttpError as error:
            logger.warning("server metrics not read", extra={"error": error})
            return None
        return memory_of_metrics(text)


def memory_of_metrics(text: str) -> int | None:
    """The memory in a server's metrics: that of its GPUs, else that of its process; else None."""
    found = metric_sums(text)
    known = [int(found[name]) for name in (GPU_METRIC, PROCESS_METRIC) if name in found]
    return known[0] if known else None


def metric_sums(text: str) -> dict[str, float]:
    """Values in Prometheus' text format by name, over all labels."""
    found: dict[str, float] = {}
    for name, value in _SAMPLE.findall(text):
        with suppress(ValueError):
            found[name] = found.get(name, 0.0) + float(value)
    return found


def server_problems(
    *, url: str, command: str, repository: str, metrics: str, programs: str
) -> list[str]:
    """Mistakes in the settings, each a line that names the flag."""
    if programs and (url or command):
        return ["--engine-python and --llama-server exclude --engine-url and --engine-command"]
    if not url and not command:
        return [
            f"--engine-{name} needs --engine-url or --engine-command"
            for name, value in (("repository", repository), ("metrics", metrics))
            if value
        ]
    if url and command:
        return ["--engine-url and --engine-command exclude each other"]
    problems = [
        f"--engine-{name} must be a URL such as http://127.0.0.1:8000, was {value!r}"
        for name, value in (("url", url), ("metrics", metrics))
        if value and not (name == "metrics" and command) and not _is_url(value)
    ]
    if url and not repository:
        problems.append(
            "--engine-url needs --engine-repository: the folder from which the server reads models"
        )
    return problems + (_command_problems(command) if command else [])


def _is_url(text: str) -> bool:
    """Whether the text is a URL of a server over plain HTTP."""
    try:
        parts = urlsplit(text)
        return parts.scheme == "http" and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def _command_problems(command: str) -> list[str]:
    try:
        words = shlex.split(command)
    except ValueError as error:
        return [f"--engine-command cannot be read as a command: {error}"]
    text = " ".join(words)
    return [
        f"--engine-command must hold {name}, which the pod replaces, was {command!r}"
        for name in ("{port}", "{repository}")
        if name not in text
    ]


def session_bytes(leader: int) -> int:
    """Memory of the processes of a session, shared pages by their share in each."""
    total = 0
    for path in Path("/proc").iterdir():
        try:
            if path.name.isdecimal() and os.getsid(int(path.name)) == leader:
                total += _proportional_bytes(path / "smaps_rollup")
        except OSError:  # it has ended
            continue
    return total


def _proportional_bytes(path: Path) -> int:
    for line in path.read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    return 0
