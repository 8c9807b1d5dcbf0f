"""Request and answer bodies of both protocols."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import orjson

from runtime.errors import InvalidRequest
from runtime.v2 import EncodedBody, V2Request, decode_request, encode_response, read_object

if TYPE_CHECKING:
    from collections.abc import Sequence

    from runtime.tensors import Tensor


class Protocol(StrEnum):
    """KServe's two inference protocols."""

    V1 = "v1"
    V2 = "v2"


@dataclass(frozen=True, slots=True)
class ReadBody:
    """A decoded body: V1 instances, or a V2 request."""

    instances: Sequence[Any] = ()
    v2: V2Request | None = None


def read_body(protocol: Protocol, body: bytes, header_length: str | None) -> ReadBody:
    """The body of an entry request; raises InvalidRequest."""
    if protocol is Protocol.V2:
        return ReadBody(v2=decode_request(body, header_length))
    document = read_object(body)
    for field in ("instances", "inputs"):
        if field in document:
            instances = document[field]
            if not isinstance(instances, list):
                raise InvalidRequest(f"{field!r} must be a list, was {type(instances).__name__}")
            return ReadBody(instances=instances)
    raise InvalidRequest(f"the body must hold a list 'instances', held {sorted(document)[:5]}")


def write_answer(
    body: ReadBody, outputs: Sequence[Tensor], *, predictions: list[Any], model_name: str
) -> EncodedBody:
    """The answer in the protocol of the request."""
    if body.v2 is not None:
        return encode_response(outputs, model_name=model_name, request=body.v2)
    content = orjson.dumps({"predictions": predictions})
    return EncodedBody(content, (("content-type", "application/json"),))
