"""Request and response bodies of all inference protocols: V1, V2, CloudEvents, gRPC's messages."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import orjson

from common.inference_protocol.bodies import (
    EncodedBody,
    V2Request,
    decode_request,
    encode_response,
    parse_object,
)
from common.inference_protocol.errors import InvalidRequest
from common.inference_protocol.grpc_messages import (
    decode_message,
    encode_message,
    messages,
    parse_message,
)
from common.shown_value import kind_of, shown

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from common.inference_protocol.tensors import Tensor

_EVENT_FIELDS = frozenset(("specversion", "id", "source", "type"))
"""What every CloudEvent has (CloudEvents 1.0.2, section "Required attributes")."""
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
        message = parse_message(messages.ModelInferRequest, body)
        return DecodedBody(v2=decode_message(message), protocol=protocol)
    return _decode_v1(parse_object(body))


def _decode_v1(document: dict[str, Any]) -> DecodedBody:
    for field in ("instances", "inputs"):
        if field in document:
            instances = document[field]
            if not isinstance(instances, list):
                raise InvalidRequest(f"{field!r} must be an array, was {kind_of(instances)}")
            return DecodedBody(instances, protocol=WireProtocol.V1)
    if not _EVENT_FIELDS - document.keys():
        return _decode_v1(_data_of_event(document))
    raise InvalidRequest(
        f"the body must hold an array 'instances', held {shown(sorted(document)[:5])}"
    )


def _data_of_event(event: Mapping[str, Any]) -> dict[str, Any]:
    """The request in a CloudEvent in structured mode. Raises InvalidRequest."""
    if "data_base64" in event:
        try:
            return parse_object(base64.b64decode(event["data_base64"], validate=True))
        except (TypeError, ValueError) as error:
            raise InvalidRequest("the event's 'data_base64' must be base64") from error
    data = event.get("data")
    if isinstance(data, dict) and _EVENT_FIELDS - data.keys():
        return data
    raise InvalidRequest(f"the event's 'data' must be a request's object, was {kind_of(data)}")


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
