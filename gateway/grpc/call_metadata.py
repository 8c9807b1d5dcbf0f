"""What a call's metadata says: the request's headers, the model, the deadline."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from gateway.errors import BadRequest
from gateway.http.headers import PROTOBUF
from gateway.http.routes import parse_path, target_of
from registry.domain.model import ModelName
from registry.grpc_codes import MAX_NAME_CHARACTERS
from registry.shown_value import shown

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gateway.app import GatewayApp
    from gateway.http.headers import Headers
    from gateway.http.routes import ModelTarget

_MODEL_NAMES: Final = (b"mm-vmodel-id", b"mm-model-id")
"""Of ModelMesh's clients; before the message's own field."""
_DEADLINE: Final = b"x-pilotlight-deadline-ms"
_DROPPED: Final = frozenset((*_MODEL_NAMES, b"content-type", b"content-length", b"te", b"host"))
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


def target_of_call(app: GatewayApp, path: str) -> ModelTarget:
    """The target of an inference path. Raises BadRequest."""
    target = app.resolve_target(path.encode(), b"")
    return target or target_of(parse_path(path, "", ()))  # which raises the error
