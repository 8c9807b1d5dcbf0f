"""`POST /v2/models/{model}/profile`: take a model's profile at this pod."""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any

import orjson
from starlette.responses import Response
from starlette.routing import Route

from registry.domain.model import ModelName
from runtime.errors import InferenceFailed, InvalidRequest, RuntimePackageError
from runtime.profiling.profiler import ProfilePlan
from runtime.protocols.routes import read_order, refused

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.requests import Request

    from registry.domain.profile import Profile
    from runtime.profiling.profiler import Profiler
    from runtime.registration.model_catalog import ModelCatalog

MOST = {"most_rows": 1024, "tokens": 100_000, "repeats": 100}


def profile_route(profiler: Profiler, catalog: ModelCatalog) -> Route:
    """The route; its body may hold `most_rows`, `tokens` and `repeats`."""

    async def answer(request: Request) -> Response:
        try:
            plan = read_plan(await read_order(request))
            name = ModelName.from_path_segment(request.path_params["model"])
            profile = await profiler.profile(await catalog.find(name, None), plan)
        except RuntimePackageError as error:
            return refused(error)
        except (RuntimeError, ValueError, TypeError) as error:  # what networks raise
            return refused(InferenceFailed(f"the model cannot be profiled: {error}"))
        return Response(orjson.dumps(document_of(profile)), media_type="application/json")

    return Route("/v2/models/{model}/profile", answer, methods=["POST"])


def read_plan(given: Mapping[str, Any]) -> ProfilePlan:
    """The plan a body asks for; an empty one asks for the usual. Raises InvalidRequest."""
    known = [field.name for field in fields(ProfilePlan)]
    for name, value in given.items():
        if name not in known:
            raise InvalidRequest(f"the body may hold {', '.join(known)}, held {name!r}")
        if type(value) is not int or not 1 <= value <= MOST[name]:
            raise InvalidRequest(f"{name!r} must be 1 to {MOST[name]}, was {value!r}")
    return ProfilePlan(**given)


def document_of(profile: Profile) -> dict[str, Any]:
    """A profile as JSON, with what follows from it."""
    points = [
        {**asdict(point), "rows_per_s": round(point.rows_per_s, 2)} for point in profile.points
    ]
    return {**asdict(profile), "points": points, "best_rows": profile.best_rows}
