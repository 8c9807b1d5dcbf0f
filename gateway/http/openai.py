"""OpenAI's protocol at the gateway: its endpoints, the model that a body names, and error bodies.

Pure.
"""

import re
from typing import Any, Final

from pydantic_core import from_json

from gateway.errors import BadRequest, GatewayError, UndeclaredModel
from registry.domain.model import ModelName

ENDPOINTS: Final = {
    "completions": "Complete a text; with `stream` as it is generated.",
    "chat/completions": "Reply to a conversation.",
    "responses": "Create a response, by models that vLLM runs.",
    "embeddings": "Embed texts.",
    "images/generations": "Generate images from a text.",
}
"""Endpoints forwarded to pods, with their descriptions in the OpenAPI document."""
EXAMPLES: Final[dict[str, dict[str, Any]]] = {
    "completions": {"model": "writer", "prompt": "Once upon a time", "max_tokens": 16},
    "chat/completions": {
        "model": "writer",
        "messages": [{"role": "user", "content": "What is a cat?"}],
    },
    "responses": {"model": "writer", "input": "What is a cat?"},
    "embeddings": {"model": "embed", "input": ["a cat", "a dog"]},
    "images/generations": {"model": "painter", "prompt": "a cat", "size": "256x256"},
}
"""A body for each endpoint."""
PATH: Final = re.compile(f"(?:/openai)?/v1/({'|'.join(ENDPOINTS)})")
"""Without `/openai` as other servers have them; `/v1/models` is KServe's."""
_AREAS: Final = (
    "chat", "completions", "embeddings", "images", "responses", "conversations", "moderations",
    "files", "uploads", "audio", "videos", "batches", "fine_tuning", "assistants", "threads",
    "vector_stores", "containers", "evals", "realtime", "rerank", "score", "classify",
)  # fmt: skip
"""Of OpenAI's API and its imitations, whose clients may leave `/openai` out."""
_ANY_PATH: Final = re.compile(
    rf"(?:/serving/[^/]+/[^/]+)?(?:/openai/.*|/v1/(?:{'|'.join(_AREAS)})(?:/.*)?)"
)
_MAX_NAME_LENGTH: Final = 253
_ERROR_TYPES: Final = {
    429: "rate_limit_error",
    503: "service_unavailable_error",
    504: "timeout_error",
}


def find_model_field(beginning: bytes, *, is_whole: bool = False) -> str | None:
    """The value of the outermost `model` key; None if the bytes end before it, or are no JSON yet.

    Raises BadRequest if the body is not a JSON object or `model` is not a non-empty string.
    """
    try:
        body = from_json(beginning, allow_partial=True)
    except ValueError as error:
        if is_whole:
            raise BadRequest(f"the body is not valid JSON: {error}") from None
        return None
    if not isinstance(body, dict):
        raise BadRequest("the body must be a JSON object that names a 'model'")
    name = body.get("model")
    if "model" in body and not (isinstance(name, str) and name):
        raise BadRequest("'model' must be a string that names a model")
    return name


def parse_model_name(text: str, namespace: str = "default") -> ModelName:
    """The model with this name in a namespace. Raises UndeclaredModel."""
    if len(text) > _MAX_NAME_LENGTH or not text.isprintable() or any(c in text for c in "/~\\"):
        raise UndeclaredModel(
            f"model {text[:_MAX_NAME_LENGTH]!r} does not exist here; models of other namespaces are"
            " at /serving/NAMESPACE/NAME/openai/v1"
        )
    return ModelName(namespace, text)


def is_openai(path: str) -> bool:
    """Whether errors at a path have OpenAI's form, with or without the prefix of a model."""
    return _ANY_PATH.fullmatch(path) is not None


def unknown_path(method: str, path: str) -> str:
    """What is wrong with a path of OpenAI's API that is not served."""
    return (
        f"there is no {method} {path}; OpenAI's API is at /openai/v1, with"
        f" {', '.join(ENDPOINTS)} and models"
    )


def error_document(error: GatewayError) -> dict[str, Any]:
    status = int(error.status)
    kind = _ERROR_TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    code = "model_not_found" if isinstance(error, UndeclaredModel) else str(error.reason)
    param = "model" if isinstance(error, UndeclaredModel) else None
    return {"error": {"message": str(error), "type": kind, "param": param, "code": code}}
