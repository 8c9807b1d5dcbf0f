"""One call over gRPC as a client's request: its metadata as headers, its model, its response."""

import asyncio
import re
from collections.abc import Callable, Iterable
from typing import Final
from urllib.parse import quote

import orjson

from common.pod_responses import MAX_NAME_CHARACTERS
from common.shown_value import shown
from gateway.app import GatewayApp
from gateway.errors import BadRequest, GatewayError
from gateway.grpc.authority_relay import AUTHORITY_HEADER
from gateway.http.error_responses import body_and_headers
from gateway.http.framing import KnownHead
from gateway.http.headers import PROTOBUF, Headers
from gateway.http.routes import parse_path, target_of
from gateway.http.targets import ModelTarget
from gateway.request_task import RequestRun
from registry.domain.model import ModelName

_MODEL_NAMES: Final = (b"mm-vmodel-id", b"mm-model-id")
"""Of ModelMesh's clients; before the message's own field."""
_DEADLINE: Final = b"x-pilotlight-deadline-ms"
_DROPPED: Final = frozenset(
    (*_MODEL_NAMES, b"content-type", b"content-length", b"te", b"host", AUTHORITY_HEADER)
)
_VALUE: Final = re.compile(r"[\x20-\x7e]*")


def pairs_of(metadata: Iterable[tuple[str, str | bytes]] | None) -> Headers:
    """Metadata as headers, without binary values. Raises BadRequest."""
    pairs = [
        (name, value)
        for name, value in metadata or ()
        if isinstance(value, str) and not name.startswith("grpc-")
    ]
    for name, value in pairs:
        if not _VALUE.fullmatch(value):
            raise BadRequest(f"metadata {name} must be visible ASCII, was {shown(value)}")
    return [(name.lower().encode(), value.encode()) for name, value in pairs]


def host_of(pairs: Headers) -> bytes:
    """The call's `:authority`, which is what a Host is over HTTP."""
    return dict(pairs).get(AUTHORITY_HEADER, b"")  # the last one is the relay's


def request_headers(pairs: Headers, *, size: int, remaining_s: float | None) -> Headers:
    """The headers of the request at the gateway, with the earlier of the call's two deadlines."""
    headers = [(name, value) for name, value in pairs if name not in _DROPPED]
    headers += [(b"content-type", PROTOBUF), (b"content-length", b"%d" % size)]
    if remaining_s is not None:
        given_ms = [float(value) for name, value in headers if name == _DEADLINE and _is_ms(value)]
        deadline_ms = min([max(remaining_s * 1000, 0.001), *given_ms])
        headers.append((_DEADLINE, b"%.3f" % deadline_ms))
    return headers


def _is_ms(value: bytes) -> bool:
    try:
        return float(value) > 0
    except ValueError:
        return False


def model_path(pairs: Headers, named: str, path: str) -> str:
    """The path of a model's resource; `named`: by the message, `NAME` or `NAMESPACE/NAME`.

    Raises BadRequest.
    """
    given = dict(pairs)
    by_metadata = next((given[each] for each in _MODEL_NAMES if given.get(each)), b"")
    text = by_metadata.decode() or named
    if not 0 < len(text) <= MAX_NAME_CHARACTERS:
        raise BadRequest(
            "the model's name, in model_name or the metadata mm-vmodel-id, must have 1 to"
            f" {MAX_NAME_CHARACTERS} characters, has {len(text)}"
        )
    model = ModelName.parse(text)
    name = quote(model.name, safe="")
    prefix = f"/serving/{quote(model.namespace, safe='')}/{name}" if "/" in text else ""
    return f"{prefix}/v2/models/{name}{path}"


def target_of_call(app: GatewayApp, path: str, host: bytes) -> ModelTarget:
    """The target of an inference path and a Host. Raises BadRequest, UndeclaredModel."""
    target = app.resolve_target(path.encode(), host)
    if target is None:
        return target_of(parse_path(path, host.decode(), app.pools.names))  # raises the error
    return target


class GrpcRequest:
    """An `InferenceClient`: its body is the call's message, its response is collected."""

    def __init__(self, target: ModelTarget, headers: Headers, content: bytes) -> None:
        self.target = target
        self.headers = headers
        self.head: KnownHead | None = None
        self.begun = None
        self.loop = asyncio.get_running_loop()
        self.run = RequestRun(self.loop)
        self.waited_s = 0.0
        self.keep_alive = True
        self.disconnected = False
        self.response_started = self.is_behind = False
        self.is_complete = True
        self.unread_bytes = 0
        self.on_disconnect: Callable[[], None] | None = None
        self.status = 0
        """The response's HTTP status; 0 without a response, or with a part of one."""
        self.metadata: Headers = []
        """The response's headers."""
        self._content = [content]
        self._status = 0
        self._parts: list[bytes] = []

    @property
    def body(self) -> bytes:
        """The response's body."""
        return b"".join(self._parts)

    @property
    def error(self) -> str:
        """The message of an error response."""
        try:
            return str(orjson.loads(self.body)["error"])
        except (ValueError, KeyError, TypeError):
            return f"the response had status {self.status}"

    def disconnect(self) -> None:
        """End the request: its client has cancelled the call, or its deadline passed."""
        self.disconnected = True
        if self.on_disconnect is not None:
            self.on_disconnect()

    # As an `InferenceClient`

    def take_chunks(self) -> list[bytes]:
        chunks, self._content = self._content, []
        return chunks

    async def receive_chunks(self) -> list[bytes]:
        return self.take_chunks()

    def respond(self, status: int, headers: Headers, body: bytes) -> None:
        self.response_started = True
        self.metadata = headers
        self._parts = [body]
        self.status = status

    def start_response(self, status: int, lines: bytes, length: bytes) -> None:
        self.response_started = True
        self._status = status
        for line in lines.split(b"\r\n"):
            name, found, value = line.partition(b": ")
            if found:
                self.metadata.append((name, value))

    def write_body(self, body: bytes, *, is_last: bool) -> None:
        self._parts.append(body)
        if is_last:
            self.status = self._status

    async def drain(self) -> None:
        """Return at once: the whole response is kept until it is sent as one message."""

    def abort_response(self, error: GatewayError, /) -> None:
        """Respond with the error: the call has got nothing of the response yet."""
        body, headers = body_and_headers(error, is_openai=False)
        headers += [pair for pair in self.metadata if pair[0] == b"x-request-id"]
        self.respond(int(error.status), headers, body)
