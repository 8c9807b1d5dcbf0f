"""Request and response bodies of all inference protocols."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import orjson

from registry.shown_value import kind_of, shown
from runtime.errors import InvalidRequest
from runtime.wire.grpc_bodies import decode_request_message, encode_message
from runtime.wire.v2 import (
    EncodedBody,
    V2Request,
    decode_request,
    encode_response,
    parse_object,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from runtime.wire.tensors import Tensor


PROTOBUF = "application/x-protobuf"
"""Content type of V2's gRPC messages over HTTP, as the gateway forwards its gRPC calls."""


class WireProtocol(StrEnum):
    """KServe's inference protocols; `grpc-v2` is V2's messages, over gRPC or HTTP."""

    V1 = "v1"
    V2 = "v2"
    GRPC_V2 = "grpc-v2"


@dataclass(frozen=True, slots=True)
class DecodedBody:
    """A decoded body: V1 instances, or a V2 request."""

    instances: Sequence[Any] = ()
    v2: V2Request | None = None
    protocol: WireProtocol = WireProtocol.V2


def decode_body(
    protocol: WireProtocol,
    body: bytes,
    header_length: str | None,
    kept: Mapping[str, Tensor] | None = None,
) -> DecodedBody:
    """Decode the body of an HTTP request; raises InvalidRequest.

    `kept`: tensors that V2 inputs refer to, by their identities.
    """
    if protocol is WireProtocol.V2:
        return DecodedBody(v2=decode_request(body, header_length, kept))
    if protocol is WireProtocol.GRPC_V2:
        return DecodedBody(v2=decode_request_message(body), protocol=protocol)
    document = parse_object(body)
    for field in ("instances", "inputs"):
        if field in document:
            instances = document[field]
            if not isinstance(instances, list):
                raise InvalidRequest(f"{field!r} must be an array, was {kind_of(instances)}")
            return DecodedBody(instances, protocol=WireProtocol.V1)
    raise InvalidRequest(
        f"the body must hold an array 'instances', held {shown(sorted(document)[:5])}"
    )


def encode_body(
    body: DecodedBody, outputs: Sequence[Tensor], *, predictions: list[Any], model_name: str
) -> EncodedBody:
    """The response in the protocol of the request; raises InvalidRequest."""
    if body.v2 is None:
        content = orjson.dumps({"predictions": predictions})
        return EncodedBody(content, (("content-type", "application/json"),))
    if body.protocol is WireProtocol.GRPC_V2:
        content = encode_message(outputs, model_name=model_name, request=body.v2)
        return EncodedBody(content, (("content-type", PROTOBUF),))
    return encode_response(outputs, model_name=model_name, request=body.v2)
