"""Calls of a V2 server: the repository extension, metadata, and inference.

Calls about models block and are made in threads; inference and health belong to the event loop.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final

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
            raise _error_of(answer)
        return answer

    async def _request(
        self, method: str, path: str, content: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> Response:
        return await self._client.request(
            method, self._address, self._prefix + path, headers, content
        )


def _error_of(response: Response) -> PodError:
    """The error for a server's response that is none of tensors."""
    text, status = message_of(response), response.status
    match status:
        case HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
            return BodyTooLarge(f"the model server refused the request: {text}")
        case HTTPStatus.TOO_MANY_REQUESTS:
            return SlotsFull(f"the model server refused the request: {text}")
        case HTTPStatus.SERVICE_UNAVAILABLE | HTTPStatus.BAD_GATEWAY | HTTPStatus.GATEWAY_TIMEOUT:
            return ServerLost(f"the model server answered {status}: {text}")
    if 400 <= status < 500:
        return InvalidRequest(f"the model server refused the request ({status}): {text}")
    return InferenceFailed(f"the model server failed in the inference ({status}): {text}")


def message_of(response: Response) -> str:
    """The server's own words on one line: V2's `error`, FastAPI's `detail`, or its last line."""
    try:
        document = response.json()
    except ValueError:
        lines = [line.strip() for line in response.text.splitlines() if line.strip()]
        return lines[-1][:MAX_MESSAGE] if lines else "no text"
    for name in ("error", "detail", "message"):
        if isinstance(document, dict) and (found := document.get(name)):
            text = found if isinstance(found, str) else json.dumps(found)
            return " ".join(text.split())[:MAX_MESSAGE]
    return response.text[:MAX_MESSAGE] or "no text"
