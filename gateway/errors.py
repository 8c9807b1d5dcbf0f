"""Errors of a request at the gateway, and their HTTP status."""

from collections.abc import Sequence
from http import HTTPStatus

from gateway.routing.decision import Reason


class GatewayError(Exception):
    """Root of the gateway's errors; the response is `{"error": message}`."""

    status = HTTPStatus.INTERNAL_SERVER_ERROR
    reason = "internal"
    challenge: bytes | None = None
    """The response's `www-authenticate` (RFC 6750, section 3)."""

    def __init_subclass__(
        cls, status: int | None = None, reason: str = "", challenge: bytes | None = None
    ) -> None:
        """Set the attributes given in the class statement; the others are inherited."""
        if status is not None:
            cls.status, cls.reason = HTTPStatus(status), reason
        if challenge is not None:
            cls.challenge = challenge

    def __init__(self, message: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class ClientClosedRequest(Exception):
    """The client closed its connection before the response was complete."""


class BadRequest(GatewayError, status=400, reason="bad-request"):
    """A path, header or body is malformed."""


class MethodNotAllowed(GatewayError, status=405, reason="method-not-allowed"):
    """The path takes other methods."""

    def __init__(self, method: str, path: str, allowed: Sequence[str]) -> None:
        self.allowed = ", ".join(allowed)
        super().__init__(f"{path[:200]} takes the methods {self.allowed}, was {method}")


class UnknownPath(GatewayError, status=404, reason="path-not-found"):
    """Nothing is at the path."""


class UndeclaredModel(GatewayError, status=404, reason="model-not-found"):
    """The model is not declared."""


class Unauthorized(GatewayError, status=401, reason="unauthorized", challenge=b"Bearer"):
    """The request has no key or token of the tenant whose model it names."""


class SignInNeeded(Unauthorized, challenge=b'Basic realm="pilotlight", charset="UTF-8"'):
    """A browser has sent no credential for the console, or a wrong one."""


class InvalidToken(Unauthorized, challenge=b'Bearer error="invalid_token"'):
    """The token is not valid for any tenant."""


class Forbidden(
    GatewayError, status=403, reason="forbidden", challenge=b'Bearer error="insufficient_scope"'
):
    """The token is valid, but not for the tenant whose model the request names."""


class RequestBodyTooLarge(GatewayError, status=413, reason="body-too-large"):
    """The body is over the limit, by its declared or its received length."""


class UnsupportedCoding(GatewayError, status=415, reason="content-encoding"):
    """The body is compressed in a way that is not read."""


class BodiesFull(GatewayError, status=503, reason="bodies-full"):
    """The bodies that the gateway holds have filled its memory or disk for them, or it failed."""


class BodyTooSlow(GatewayError, status=408, reason="body-too-slow"):
    """The client stopped sending its body."""


class ClientTooSlow(GatewayError, status=408, reason="client-too-slow"):
    """The client stopped reading its response, of which it has the beginning."""


class ShuttingDown(GatewayError, status=503, reason="draining"):
    """The gateway drains."""


class NotReady(GatewayError, status=503, reason="not-ready"):
    """The gateway has not yet read the registry, or the token issuer's keys for the request."""


class UpstreamLost(GatewayError, status=502, reason="pod-lost"):
    """The pod was lost during the request, which could not be retried."""


class ComponentUnreachable(GatewayError, status=503, reason="component-unreachable"):
    """There is no connection to the model's transformer or explainer."""


class ComponentLost(GatewayError, status=502, reason="component-lost"):
    """The transformer or explainer closed the connection during the request."""


class ComponentLoop(GatewayError, status=508, reason="component-loop"):
    """The transformer or explainer sends the request to itself."""


class NotImplementedHere(GatewayError, status=501, reason="not-implemented"):
    """The model has no explainer, or its transformer cannot take such a request."""


class NoPodAccepted(GatewayError, status=503, reason="not-taken"):
    """Every attempted pod was unreachable or refused the request without executing it."""


class RequestLostPods(GatewayError, status=503, reason="lost-pods"):
    """Two pods were lost while they had the request, which may be the cause."""


class UpstreamTimeout(GatewayError, status=504, reason="deadline"):
    """The deadline passed while a pod executed the request."""


_STATUS_OF_REASON = {
    Reason.DEADLINE: HTTPStatus.GATEWAY_TIMEOUT,
    Reason.QUEUE_TIMEOUT: HTTPStatus.GATEWAY_TIMEOUT,
    Reason.QUEUE_FULL: HTTPStatus.TOO_MANY_REQUESTS,
    Reason.LOAD_FAILED: HTTPStatus.SERVICE_UNAVAILABLE,
    Reason.MODEL_GONE: HTTPStatus.NOT_FOUND,
    Reason.NO_SUPPORTING_RUNTIME: HTTPStatus.NOT_IMPLEMENTED,
    Reason.MODEL_STOPPED: HTTPStatus.SERVICE_UNAVAILABLE,
    Reason.POLICY_FAILED: HTTPStatus.INTERNAL_SERVER_ERROR,
}


class Rejected(GatewayError):
    """The routing decision is to reject the request."""

    reason: Reason

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

    def copy(self) -> "Rejected":
        """Without the traceback."""
        return Rejected(
            self.reason, str(self), retry_after_s=self.retry_after_s, http_status=self.status
        )
