"""The methods that a path of the gateway has; requests with others are refused with 405."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from starlette.routing import Match

from gateway.http.routes import is_inference

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.routing import BaseRoute

_METHODS: Final = ("GET", "POST", "PUT", "DELETE")
_RUN: Final = re.compile(r"/v1/workflows/[^/]+(?::|%3[Aa])run")


def is_action(path: str) -> bool:
    """True for a path, without its prefix, that takes POST only: an inference, or a run.

    Routes of a model's or workflow's name match some of them as well.
    """
    return is_inference(path) or _RUN.fullmatch(path) is not None


def allowed_methods(routes: Sequence[BaseRoute], path: str) -> list[str]:
    """For the response's `allow`; `path` has no escapes."""

    def is_allowed(method: str) -> bool:
        scope = {"type": "http", "method": method, "path": path}
        return any(route.matches(scope)[0] is Match.FULL for route in routes)

    return list(filter(is_allowed, _METHODS))
