"""The HTTPS server of the admission webhooks. Every replica answers, also those that follow."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import orjson
from starlette.applications import Starlette
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from autoscaler.kubernetes.admission.review import answer_review, set_defaults, validate

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from starlette.requests import Request

logger = logging.getLogger(__name__)

VALIDATE_PATH = "/validate-inferenceservice"
MUTATE_PATH = "/mutate-inferenceservice"
_MOST_BYTES = 8 << 20
"""The API server takes objects of 3 MB at most, and sends the old one along."""


def admission_app() -> Starlette:
    """The ASGI application of both webhooks."""
    return Starlette(
        routes=[
            Route(VALIDATE_PATH, _endpoint(validate), methods=["POST"]),
            Route(MUTATE_PATH, _endpoint(set_defaults), methods=["POST"]),
        ]
    )


def _endpoint(answer: Callable[[Mapping[str, Any]], dict[str, Any]]) -> Any:
    async def review(request: Request) -> Response:
        body = b""
        async for piece in request.stream():
            body += piece
            if len(body) > _MOST_BYTES:
                return JSONResponse({"error": f"longer than {_MOST_BYTES} bytes"}, 413)
        try:
            document = orjson.loads(body)
            return JSONResponse(answer_review(document, answer))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            logger.warning("an admission review cannot be read", exc_info=error)
            return JSONResponse({"error": f"must be an AdmissionReview: {error!r}"}, 400)

    return review
