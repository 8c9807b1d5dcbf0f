"""OpenAI's routes at the pod, for all declared models.

The body's `model` names the model, as `name` or `namespace/name`. The gateway sends requests with
the model in the path: `/serving/NAMESPACE~NAME/openai/v1/…`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import orjson
from starlette.responses import Response
from starlette.routing import Route

from runtime.errors import ModelNotFound
from runtime.loading.processors import Processors
from runtime.openai.endpoint import Endpoint, parse_model_name
from runtime.openai.generation_route import GenerationRoute
from runtime.openai.inference_routes import Inferences
from runtime.openai.requests import ChatBody, CompletionBody, EmbeddingBody
from runtime.openai.responses import model_card, model_list, openai_error
from runtime.protocols.routes import error_as_response
from runtime.registration.model_catalog import ModelCatalog
from runtime.serving.generation_service import GenerationService
from runtime.serving.predict_service import PredictService
from runtime.serving.remote_inference import RemoteInference
from runtime.settings import RuntimeSettings

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import ASGIApp, Receive, Scope, Send


PREFIX = "/openai/v1"


@dataclass(frozen=True, slots=True)
class _ImageEndpoint:
    """Imports the optional image generation with its first request."""

    settings: RuntimeSettings
    inferences: Inferences

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        from runtime.openai.image_route import ImageBody, make_images

        threads, serve = self.inferences.service.threads, partial(make_images, self.inferences)
        await Endpoint(self.settings, threads, ImageBody, serve)(scope, receive, send)


@dataclass(frozen=True, slots=True)
class OpenAIRoutes:
    settings: RuntimeSettings
    service: PredictService
    generations: GenerationService
    processors: Processors
    catalog: ModelCatalog
    remote: RemoteInference

    def table(self) -> list[Route]:
        settings, threads = self.settings, self.service.threads
        generation = GenerationRoute(self.service, self.generations, self.catalog, self.remote)
        inferences = Inferences(self.service, self.processors, self.catalog)
        endpoints: Mapping[str, ASGIApp] = {
            "chat/completions": Endpoint(settings, threads, ChatBody, generation.serve),
            "completions": Endpoint(settings, threads, CompletionBody, generation.serve),
            "embeddings": Endpoint(settings, threads, EmbeddingBody, inferences.embed),
            "images/generations": _ImageEndpoint(settings, inferences),
        }
        return [
            Route(f"{PREFIX}/models", self._models, methods=["GET"]),
            Route(f"{PREFIX}/models/{{model:path}}", self._model, methods=["GET"]),
            *(
                Route(f"{prefix}/{path}", endpoint, methods=["POST"])
                for prefix in (PREFIX, f"/serving/{{model}}{PREFIX}")
                for path, endpoint in endpoints.items()
            ),
        ]

    async def _models(self, request: Request) -> Response:
        """All declared models: requests may name each of them, warm or cold."""
        return Response(model_list(self.catalog.names()), media_type="application/json")

    async def _model(self, request: Request) -> Response:
        name = parse_model_name(request.path_params["model"])
        if self.catalog.record(name) is None:
            return error_as_response(ModelNotFound(f"model {name} is not declared"), openai_error)
        return Response(orjson.dumps(model_card(name)), media_type="application/json")
