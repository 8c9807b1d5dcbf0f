"""`POST /v2/models/{model}/profile`: profile a model at this pod."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any

import orjson
from starlette.responses import Response
from starlette.routing import Route

from common.inference_protocol.errors import InvalidRequest, PodError
from common.shown_value import shown
from registry.domain.model import ModelName
from registry.domain.pod import Profile
from registry.domain.records import profile_document
from runtime.errors import InferenceFailed
from runtime.profiling import ProfilePlan, Profiler
from runtime.protocols.routes import error_as_response, read_json
from runtime.registration.model_catalog import ModelCatalog

if TYPE_CHECKING:
    from starlette.requests import Request


RANGES = {
    "most_rows": (1, 1024),
    "tokens": (1, 100_000),
    "repeats": (1, 100),
    "share_pct": (0, 100),
    "is_stored": (0, 1),
}


def profile_route(profiler: Profiler, catalog: ModelCatalog) -> Route:
    """The route; its body may hold the fields of `ProfilePlan`."""

    async def handle(request: Request) -> Response:
        try:
            plan = parse_plan(await read_json(request))
            name = ModelName.from_path_segment(request.path_params["model"])
            profile = await profiler.profile(await catalog.find(name, None), plan)
            share_pct = profiler.measured_share(plan)
        except PodError as error:
            return error_as_response(error)
        except (RuntimeError, ValueError, TypeError) as error:  # what networks raise
            return error_as_response(InferenceFailed(f"the model cannot be profiled: {error}"))
        document = to_document(profile) | ({"share_pct": share_pct} if share_pct else {})
        return Response(orjson.dumps(document), media_type="application/json")

    return Route("/v2/models/{model}/profile", handle, methods=["POST"])


def parse_plan(body: Mapping[str, Any]) -> ProfilePlan:
    """The plan of a request body; raises InvalidRequest."""
    known = [field.name for field in fields(ProfilePlan)]
    for name, value in body.items():
        if name not in known:
            raise InvalidRequest(f"the body may hold {', '.join(known)}, held {name!r}")
        low, high = RANGES[name]
        if type(value) is not int or not low <= value <= high:
            raise InvalidRequest(f"{name!r} must be {low} to {high}, was {shown(value)}")
    return ProfilePlan(**body)


def to_document(profile: Profile) -> dict[str, Any]:
    """A profile as JSON, with its throughput and best batch size."""
    points = [
        {**asdict(point), "rows_per_s": round(point.rows_per_s, 2)} for point in profile.points
    ]
    return {**profile_document(profile), "points": points, "best_rows": profile.best_rows}
