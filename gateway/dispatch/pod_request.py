"""A request as its pod gets it: the caller's headers, our commands, the framing of its body."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gateway.dispatch.dispatcher import Placement
    from gateway.http.body import RequestBody
    from gateway.http.headers import RequestHeaders
    from gateway.http.routes import ModelTarget


def request_head(
    target: ModelTarget,
    read: RequestHeaders,
    placement: Placement,
    body: RequestBody,
    *,
    left_ms: float,
) -> bytes:
    """The head of the request; `left_ms` is what the pod may take."""
    reservation = placement.reservation
    lines = [
        b"POST ", target.pod_path, b" HTTP/1.1\r\nhost: ", reservation.entry.address.encode(),
        b"\r\n", read.passed,
        b"x-request-id: ", read.request_id.encode(),
        b"\r\nx-pilotlight-model-name: ", target.name.encode(),
        b"\r\nx-pilotlight-generation: ", placement.spec.generation.encode(),
        b"\r\nx-pilotlight-deadline-ms: %d" % max(1, left_ms),
    ]  # fmt: skip
    if not reservation.is_local:
        lines += (b"\r\nx-pilotlight-reservation: ", reservation.id.encode())
    if reservation.load_token:
        lines.append(b"\r\nx-pilotlight-load-token: %d" % reservation.load_token)
    if reservation.predict is not reservation.entry:
        lines += (b"\r\nx-pilotlight-predict: ", reservation.predict.address.encode())
    if body.is_whole:
        lines.append(b"\r\ncontent-length: %d\r\n\r\n" % body.seen_bytes)
    elif body.declared is not None:
        lines.append(b"\r\ncontent-length: %d\r\n\r\n" % body.declared)
    else:
        lines.append(b"\r\ntransfer-encoding: chunked\r\n\r\n")
    return b"".join(lines)


def framed(chunk: bytes, is_chunked: bool) -> bytes:
    """A piece of a body that is streamed."""
    if not is_chunked:
        return chunk
    return b"%x\r\n%b\r\n" % (len(chunk), chunk) if chunk else b""
