"""The channels of hostile requests, each with its grammar."""

from typing import Any, Final

from hypothesis.strategies import SearchStrategy

from tests.hostile import platform_requests
from tests.hostile.grpc_calls import GrpcCall, grpc_calls
from tests.hostile.heads import HttpRequest
from tests.hostile.http_messages import endpoints, http
from tests.hostile.inference_requests import images, json_requests, v2_binary

Hostile = HttpRequest | GrpcCall

CHANNELS: Final[dict[str, SearchStrategy[Any]]] = {
    "http": http(),
    "endpoints": endpoints(),
    "v1": json_requests("v1"),
    "v2-json": json_requests("v2"),
    "v2-binary": v2_binary(),
    "openai": json_requests("openai"),
    "images": images(),
    "grpc": grpc_calls(),
    "workflows": platform_requests.workflows(),
    "applications": platform_requests.applications(),
    "console": platform_requests.console(),
}
