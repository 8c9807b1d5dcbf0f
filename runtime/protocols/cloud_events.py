"""CloudEvents 1.0 over V1, answered in kind, as KServe's servers answer them.

In binary mode (attributes in headers `ce-…`) or structured mode (one JSON document).
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

import orjson

from common.inference_protocol.bodies import EncodedBody

STRUCTURED: Final = "application/cloudevents+json"
_REQUIRED: Final = ("ce-specversion", "ce-id", "ce-source", "ce-type")
_TYPE: Final = "io.kserve.inference.response"
_SOURCE: Final = "io.kserve.inference."


def _is_binary(headers: Mapping[str, str]) -> bool:
    return "ce-specversion" in headers and all(name in headers for name in _REQUIRED)


def _is_structured(headers: Mapping[str, str]) -> bool:
    return headers.get("content-type", "").startswith(STRUCTURED)


def answer_in_kind(headers: Mapping[str, str], model_name: str, body: EncodedBody) -> EncodedBody:
    """The response as an event, in the mode of the request, if that is one."""
    is_binary = _is_binary(headers)
    if not is_binary and not _is_structured(headers):
        return body
    attributes = {
        "specversion": "1.0",
        "id": str(uuid.uuid4()),
        "source": f"{_SOURCE}{model_name}",
        "type": _TYPE,
        "time": datetime.now(UTC).isoformat(),
    }
    if is_binary:
        named = tuple((f"ce-{name}", value) for name, value in attributes.items())
        return EncodedBody(body.content, (*body.headers, *named))
    content = orjson.dumps({**attributes, "data": orjson.Fragment(body.content)})
    return EncodedBody(content, (("content-type", STRUCTURED),))
