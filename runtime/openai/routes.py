"""OpenAI's routes at the pod, for models declared at any time.

The body's `model` names the model, as `name` or `namespace/name`; the gateway, which has decided
that already, names it in the path: `/serving/NAMESPACE~NAME/openai/v1/…`.
"""

from __future__ import annotations

from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import orjson
from starlette.responses import Response
from starlette.routing import Route

from runtime.errors import ModelNotFound
from runtime.openai.answers import model_card, model_list
from runtime.openai.embedding_route import EmbeddingRoute
from runtime.openai.errors import openai_error
from runtime.openai.exchange import Endpoint
from runtime.openai.generation_route import GenerationRoute
from runtime.openai.image_route import ImageRoute
from runtime.openai.inference import Inferences
from runtime.openai.naming import model_named
from runtime.openai.requests import ChatBody, CompletionBody, EmbeddingBody, ImageBody
from runtime.protocols.response import error_answer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.requests import Request

    from runtime.loading.processors import Processors
    from runtime.registration.model_catalog import ModelCatalog
    from runtime.serving.generation_service import GenerationService
    from runtime.serving.predict_service import PredictService
    from runtime.serving.remote_inference import RemoteInference
    from runtime.settings import RuntimeSettings

PREFIX = "/openai/v1"


@dataclass(frozen=True, slots=True)
class OpenAIRoutes:
    """Everything under `/openai/v1`."""

    settings: RuntimeSettings
    service: PredictService
    generations: GenerationService
    processors: Processors
    catalog: ModelCatalog
    peers: RemoteInference

    def table(self) -> list[Route]:
        """The routes."""
        generation = GenerationRoute(self.service, self.generations, self.catalog, self.peers)
        inferences = Inferences(
            self.service, self.processors, self.catalog, self.generations.threads
        )
        endpoints: Mapping[str, Endpoint[Any]] = {
            "chat/completions": Endpoint(self.settings, ChatBody, generation.answer),
            "completions": Endpoint(self.settings, CompletionBody, generation.answer),
            "embeddings": Endpoint(self.settings, EmbeddingBody, EmbeddingRoute(inferences).answer),
            "images/generations": Endpoint(self.settings, ImageBody, ImageRoute(inferences).answer),
        }
        return [
            Route(f"{PREFIX}/models", self._models, methods=["GET"]),
            Route(f"{PREFIX}/models/{{model:path}}", self._model, methods=["GET"]),
            *(
                Route(f"{prefix}/{call}", endpoint, methods=["POST"])
                for prefix in (PREFIX, f"/serving/{{model}}{PREFIX}")
                for call, endpoint in endpoints.items()
            ),
        ]

    async def _models(self, request: Request) -> Response:
        """All declared models: each can be asked for, cold if need be."""
        del request
        return Response(model_list(self.catalog.names()), media_type="application/json")

    async def _model(self, request: Request) -> Response:
        """One declared model."""
        name = model_named(request.path_params["model"])
        if self.catalog.record(name) is None:
            error = ModelNotFound(f"model {name} is not declared")
            status, content, headers = error_answer(error, openai_error)
            return Response(content, status, headers=dict(headers))
        return Response(
            orjson.dumps(model_card(name)), HTTPStatus.OK, media_type="application/json"
        )
