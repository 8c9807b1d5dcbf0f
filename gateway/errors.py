"""What a request can fail of at the gateway, and the one table that turns it into HTTP."""

from __future__ import annotations

from http import HTTPStatus

from gateway.routing.decision import Reason


class GatewayError(Exception):
    """Root of the gateway's errors; each is answered as `{"error": message}`."""

    status = HTTPStatus.INTERNAL_SERVER_ERROR
    reason = "internal"
    challenge: bytes | None = None
    """The answer's `www-authenticate` (RFC 6750, section 3)."""

    def __init__(self, message: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class BadRequest(GatewayError):
    """The request cannot be understood."""

    status = HTTPStatus.BAD_REQUEST
    reason = "bad-request"


class UnknownModel(GatewayError):
    """Nobody declared such a model."""

    status = HTTPStatus.NOT_FOUND
    reason = "model-not-found"


class Unauthorized(GatewayError):
    """The request carries no key or token of the tenant whose model it names."""

    status = HTTPStatus.UNAUTHORIZED
    reason = "unauthorized"
    challenge = b"Bearer"


class InvalidToken(Unauthorized):
    """The request's token is good for nobody."""

    challenge = b'Bearer error="invalid_token"'


class Forbidden(GatewayError):
    """The request's token is good, but not for the tenant whose model it names."""

    status = HTTPStatus.FORBIDDEN
    reason = "forbidden"
    challenge = b'Bearer error="insufficient_scope"'


class RequestBodyTooLarge(GatewayError):
    """The body is over the limit, by its declared length or by count."""

    status = HTTPStatus.REQUEST_ENTITY_TOO_LARGE
    reason = "body-too-large"


class BodyTooSlow(GatewayError):
    """The client stopped sending its body."""

    status = HTTPStatus.REQUEST_TIMEOUT
    reason = "body-too-slow"


class ShuttingDown(GatewayError):
    """The gateway drains and takes nothing new."""

    status = HTTPStatus.SERVICE_UNAVAILABLE
    reason = "draining"


class NotReady(GatewayError):
    """The gateway does not know yet what there is."""

    status = HTTPStatus.SERVICE_UNAVAILABLE
    reason = "not-ready"


class UpstreamLost(GatewayError):
    """The pod went away while it held the request, and it could not be tried elsewhere."""

    status = HTTPStatus.BAD_GATEWAY
    reason = "pod-lost"


class NotTaken(GatewayError):
    """No pod took the request: all that were asked refused it unexecuted, or were out of reach."""

    status = HTTPStatus.SERVICE_UNAVAILABLE
    reason = "not-taken"


class UpstreamTimeout(GatewayError):
    """The deadline passed while the pod held the request."""

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
    """A decision: the request is not served, for a reason from the closed set."""

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
        known = _STATUS_OF_REASON.get(reason, HTTPStatus.SERVICE_UNAVAILABLE)
        self.status = HTTPStatus(http_status) if http_status else known
