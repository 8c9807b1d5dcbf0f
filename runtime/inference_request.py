"""A request of the inference protocols (V1, V2, CloudEvents, gRPC's messages): headers and body."""

from __future__ import annotations

import base64
import os
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import orjson

from common.inference_protocol import InvalidRequest
from common.inference_protocol.bodies import (
    EncodedBody,
    V2Request,
    decode_request,
    encode_response,
    parse_object,
)
from common.inference_protocol.grpc_messages import (
    decode_message,
    encode_message,
    messages,
    parse_message,
)
from common.inference_protocol.tensors import Tensor
from common.shown_value import kind_of, shown
from registry.domain.model import ModelName

HOST_PORT = re.compile(r"^[A-Za-z0-9.\-\[\]:]+:\d{1,5}$")
PRINTABLE = re.compile(r"^[\x21-\x7e]{1,256}$")
BODY_BYTES_HEADER = "x-pilotlight-body-bytes"
"""Of the inference stage, whose tensors have another size: that of the client's request."""
RUN = re.compile(r"^[A-Za-z0-9._-]{1,128}$")
TOKEN = re.compile(r"^[0-9]{1,18}$")
SIMULATED_STAGES = frozenset({"preprocess", "postprocess", "network"})
MAX_SIMULATED_S = 600.0


@dataclass(frozen=True, slots=True)
class RequestHead:
    model: ModelName
    response_model_name: str
    """The model's name in the response: the one that the client used."""
    id: str
    generation: str | None
    reservation: str | None
    load_token: int | None
    predict_address: str | None
    """The pod that runs the inference; None: this one."""
    is_infer_stage: bool
    attempt: str | None
    """Names one attempt of one request, unlike `id`, which clients choose."""
    is_resent: bool
    """The gateway lost the connection of its first attempt at this pod."""
    deadline_s: float | None
    """On the clock of `time.monotonic`."""
    simulated_work: Mapping[str, float]
    """Seconds of sleep per stage."""
    v2_header_length: str | None
    run: str | None = None
    """The run of a workflow that the request is a step of: its large outputs stay at the pod."""
    is_queued_step: bool = False
    """A scheduler of workflows has placed it here: it is in the step queue, and takes no slot."""
    due_s: float | None = None
    """Its urgency, where it differs from the deadline: a step leaves time for those after it."""
    body_bytes: int | None = None
    """Size of the body that the client sent; None: not known."""


def parse_request_head(segment: str, headers: Mapping[str, str]) -> RequestHead:
    """The head of a request; raises InvalidRequest naming the invalid header.

    Args:
        segment: the model in the URL's path, `name` or `namespace~name`.
        headers: by their names in lower case.
    """
    model = ModelName.from_path_segment(segment)
    deadline_s = _parse_deadline(headers.get("x-pilotlight-deadline-ms"))
    stage = headers.get("x-pilotlight-stage")
    if stage not in {None, "infer"}:
        raise InvalidRequest(f"header x-pilotlight-stage must be 'infer', was {stage!r}")
    token = _matched(headers, "x-pilotlight-load-token", TOKEN, "be a number")
    following = _matched(
        headers, "x-pilotlight-following-ms", TOKEN, "be a whole number of milliseconds"
    )
    return RequestHead(
        model=model,
        response_model_name=headers.get("x-pilotlight-model-name") or model.name,
        id=_parse_printable(headers, "x-request-id") or os.urandom(16).hex(),
        generation=headers.get("x-pilotlight-generation") or None,
        reservation=_parse_printable(headers, "x-pilotlight-reservation"),
        load_token=int(token) or None if token else None,
        predict_address=_matched(headers, "x-pilotlight-predict", HOST_PORT, "be host:port"),
        is_infer_stage=stage == "infer",
        attempt=_parse_printable(headers, "x-pilotlight-attempt"),
        is_resent="x-pilotlight-resent" in headers,
        deadline_s=deadline_s,
        simulated_work=_parse_simulated_work(headers.get("x-pilotlight-simulate")),
        v2_header_length=headers.get("inference-header-content-length"),
        run=_matched(headers, "x-pilotlight-run", RUN, "name a run"),
        is_queued_step="x-pilotlight-step-queue" in headers,
        # The deadline less the time of what is expected to follow.
        due_s=deadline_s - int(following) / 1000 if deadline_s and following else None,
        body_bytes=_parse_size(
            headers.get(BODY_BYTES_HEADER if stage == "infer" else "content-length")
        ),
    )


def _matched(
    headers: Mapping[str, str], header: str, pattern: re.Pattern[str], allowed: str
) -> str | None:
    """The header's value, None without one; raises InvalidRequest if it does not fit."""
    text = headers.get(header)
    if text and not pattern.match(text):
        raise InvalidRequest(f"header {header} must {allowed}, was {text[:80]!r}")
    return text or None


def _parse_printable(headers: Mapping[str, str], header: str) -> str | None:
    return _matched(headers, header, PRINTABLE, "be 1 to 256 printable characters")


def _parse_size(text: str | None) -> int | None:
    return int(text) if text and TOKEN.match(text) else None


def _parse_deadline(text: str | None) -> float | None:
    if not text:
        return None
    try:
        remaining_ms = float(text)
    except ValueError:
        remaining_ms = float("nan")
    if not -1e12 < remaining_ms < 1e12:
        raise InvalidRequest(
            f"header x-pilotlight-deadline-ms must be the milliseconds that remain, was {text!r}"
        )
    return time.monotonic() + remaining_ms / 1000


def _parse_simulated_work(text: str | None) -> dict[str, float]:
    """Seconds of sleep per stage, such as `preprocess=0.5,network=1`, for demo and experiments.

    A pod accepts the header only if it runs with `--allow-simulated-work`.
    """
    seconds: dict[str, float] = {}
    for part in text.split(",") if text else ():
        stage, _, value = part.strip().partition("=")
        if stage not in SIMULATED_STAGES or not re.fullmatch(r"\d+(\.\d+)?", value):
            raise InvalidRequest(
                "header x-pilotlight-simulate must be stage=seconds for stages"
                f" {sorted(SIMULATED_STAGES)}, was {part.strip()!r}"
            )
        seconds[stage] = min(float(value), MAX_SIMULATED_S)
    return seconds


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
