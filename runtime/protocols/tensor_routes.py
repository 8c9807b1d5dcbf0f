"""Tensors that the pod keeps for runs of workflows: read by other pods, freed by schedulers.

Like all routes of a pod they need the pods' shared secret, where there is one.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Final

import orjson
from starlette.responses import Response
from starlette.routing import Route

from common.inference_protocol.bodies import BINARY_TYPE
from common.inference_protocol.encodings import raw_view
from common.inference_protocol.tensors import BF16, MAX_IDENTITIES
from runtime.serving.tensor_store import TensorStore
from runtime.threads import in_thread

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import Receive, Scope, Send


_RUN: Final = "/v2/tensors/{namespace}/{run}"


def tensor_routes(store: TensorStore, threads: Executor) -> list[Route]:
    async def read(request: Request) -> Response:
        """The raw bytes of tensors, one after the other, or 404."""
        names = request.path_params
        identities = names["identities"].split(",", MAX_IDENTITIES)
        if len(identities) > MAX_IDENTITIES:
            return _document(
                {"error": f"at most {MAX_IDENTITIES} tensors can be read at once"}, 400
            )
        run = names["namespace"], names["run"]
        found = [store.find(*run, each) for each in identities]
        tensors = [tensor for tensor in found if tensor is not None]
        if len(tensors) < len(found):
            return _document({"error": "the pod does not keep this tensor (any more)"}, 404)
        if all(tensor.datatype != BF16 for tensor in tensors):
            return _BuffersResponse([raw_view(tensor) for tensor in tensors])
        return _BuffersResponse(await in_thread(threads, lambda: list(map(raw_view, tensors))))

    async def present(request: Request) -> Response:
        """Which of the tensors that the query names are kept."""
        run = request.path_params["namespace"], request.path_params["run"]
        asked = request.query_params.getlist("identity")
        kept = [each for each in asked if store.find(*run, each) is not None]
        return _document({"kept": kept}, 200)

    async def drop(request: Request) -> Response:
        """Free tensors of a run: those that are named, or all."""
        names = request.path_params
        identities = names["identities"].split(",") if "identities" in names else None
        return _document({"dropped": store.drop(names["namespace"], names["run"], identities)}, 200)

    return [
        Route(f"{_RUN}/{{identities}}", read, methods=["GET"]),
        Route(f"{_RUN}/{{identities}}", drop, methods=["DELETE"]),
        Route(_RUN, present, methods=["GET"]),
        Route(_RUN, drop, methods=["DELETE"]),
    ]


class _BuffersResponse(Response):
    """Buffers as one body; none is copied."""

    def __init__(self, buffers: Sequence[memoryview]) -> None:
        length = sum(map(len, buffers))
        super().__init__(media_type=BINARY_TYPE, headers={"content-length": str(length)})
        self._buffers = buffers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        for buffer in self._buffers:
            await send({"type": "http.response.body", "body": buffer, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


def _document(document: object, status: int) -> Response:
    return Response(orjson.dumps(document), status, media_type="application/json")
