"""gRPC's own health protocol, which Kubernetes' probes and load balancers ask."""

from __future__ import annotations

from typing import TYPE_CHECKING

import grpc
import grpc.aio

from gateway.grpc.messages import (
    HEALTH,
    NOT_SERVING,
    SERVICES,
    SERVING,
    message_class,
)

if TYPE_CHECKING:
    from collections.abc import Callable

_Request = message_class(f"{HEALTH}CheckRequest")
_Response = message_class(f"{HEALTH}CheckResponse")


def health_handler(is_ready: Callable[[], bool]) -> grpc.GenericRpcHandler:
    async def check(content: bytes, context: grpc.aio.ServicerContext) -> bytes:
        service = _Request.FromString(content).service
        if service and service not in SERVICES:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"there is no service {service[:200]!r}")
        status = SERVING if is_ready() else NOT_SERVING
        answer: bytes = _Response(status=status).SerializeToString()
        return answer

    return grpc.method_handlers_generic_handler(
        HEALTH, {"Check": grpc.unary_unary_rpc_method_handler(check)}
    )
