"""Errors of a request at the gateway, and their HTTP status."""

from __future__ import annotations

from http import HTTPStatus

from gateway.routing.decision import Reason


class GatewayError(Exception):
    """Root of the gateway's errors; the response is `{"error": message}`."""

    status = HTTPStatus.INTERNAL_SERVER_ERROR
    reason = "internal"
    challenge: bytes | None = None
    """The response's `www-authenticate` (RFC 6750, section 3)."""

    def __init__(self, message: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class BadRequest(GatewayError):
    """A path, header or body is malformed."""

    status = HTTPStatus.BAD_REQUEST
    reason = "bad-request"


class UnknownModel(GatewayError):
    """The model is not declared."""

    status = HTTPStatus.NOT_FOUND
    reason = "model-not-found"


class Unauthorized(GatewayError):
    """The request has no key or token of the tenant whose model it names."""

    status = HTTPStatus.UNAUTHORIZED
    reason = "unauthorized"
    challenge = b"Bearer"


class InvalidToken(Unauthorized):
    """The token is not valid for any tenant."""

    challenge = b'Bearer error="invalid_token"'


class Forbidden(GatewayError):
    """The token is valid, but not for the tenant whose model the request names."""

    status = HTTPStatus.FORBIDDEN
    reason = "forbidden"
    challenge = b'Bearer error="insufficient_scope"'


class RequestBodyTooLarge(GatewayError):
    """The body is over the limit, by its declared or its received length."""

    status = HTTPStatus.REQUEST_ENTITY_TOO_LARGE
    reason = "body-too-large"


class BodyTooSlow(GatewayError):
    """The client stopped sending its body."""

    status = HTTPStatus.REQUEST_TIMEOUT
    reason = "body-too-slow"


class ShuttingDown(GatewayError):
    """The gateway drains."""

    status = HTTPStatus.SERVICE_UNAVAILABLE
    reason = "draining"


class NotReady(GatewayError):
    """The gateway has not read yet what the request needs: registry or token issuer's keys."""

    status = HTTPStatus.SERVICE_UNAVAILABLE
    reason = "not-ready"


class UpstreamLost(GatewayError):
    """The pod was lost during the request, which could not be retried."""

    status = HTTPStatus.BAD_GATEWAY
    reason = "pod-lost"


class NoPodAccepted(GatewayError):
    """Every attempted pod was unreachable or refused the request without executing it."""

    status = HTTPStatus.SERVICE_UNAVAILABLE
    reason = "not-taken"


class UpstreamTimeout(GatewayError):
    """The deadline passed while a pod executed the request."""

    status = HTTPStatus.GATEWAY_TIMEOUT
    reason = "deadline"


_STATUS_OF_REASON = {
    Reason.DEADLINE: HTTPStatus.GATEWAY_TIMEOUT,
    Reason.QUEUE_TIMEOUT: HTTPStatus.GATEWAY_TIMEOUT,
    Reason.QUEUE_FULL: HTTPStatus.TOO_MANY_REQUESTS,
    Reason.LOAD_FAILED: HTTPStatus.SERVICE_UNAVAILABLE,
    Reason.MODEL_GONE: HTTPStatus.NOT_FOUND,
}


class Rejected(GatewayError):
    """The routing decision is to reject the request."""

    def __init__(
        self,
        reason: Reason,
        message: str,
        *,
        retry_after_s: float | None = None,
        http_status: int | None = None,
    ) -> None:
        super().__init__(message, retry_after_s=retry_after_s)
        self.reason = reason
        status = _STATUS_OF_REASON.get(reason, HTTPStatus.SERVICE_UNAVAILABLE)
        self.status = HTTPStatus(http_status) if http_status else status
