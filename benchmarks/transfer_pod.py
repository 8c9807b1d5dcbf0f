"""`python -m benchmarks.transfer_pod FOLDER`: what of a pod keeps tensors and hands them over.

The same routes, server, store and sockets as a pod's, and beside them `/pickle`, by which the same
tensors are pickled and sent. Prints one line of JSON once it serves.
"""

import asyncio
import pickle
import socket
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import orjson
import torch
import uvicorn
import uvloop
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from common.inference_protocol.tensors import Tensor
from common.pod_secret import PodSecret
from runtime.protocols.routes import tensor_routes
from runtime.serving.tensor_exchange import BlockServer
from runtime.serving.tensor_store import TensorStore
from runtime.tiers.host_folder import HostFolder, HostSockets

COUNT: Final = 32
SHAPE: Final = (128, 768)
LARGE_BYTES: Final = 64 * 1024**2
RUN: Final = "run"
NAMESPACE: Final = "default"
BUDGET_BYTES: Final = 1 << 30


def embeddings() -> list[torch.Tensor]:
    """The outputs of a step: 32 tensors of 384 KiB."""
    generator = torch.Generator().manual_seed(1)
    return [torch.rand(SHAPE, generator=generator) for _ in range(COUNT)]


def large() -> list[torch.Tensor]:
    return [torch.rand(LARGE_BYTES // 4, generator=torch.Generator().manual_seed(2))]


def kept(store: TensorStore, tensors: list[torch.Tensor]) -> list[str]:
    """The identities of tensors in a store."""
    identities = []
    for tensor in tensors:
        identity = store.keep(NAMESPACE, RUN, Tensor("x", "FP32", tensor.numpy()))
        if identity is None:
            raise MemoryError(f"the store has no room for {tensor.nbytes} bytes")
        identities.append(identity)
    return identities


async def serve(folder: Path) -> None:
    store = TensorStore(BUDGET_BYTES, shares_memory=True)
    plain = TensorStore(BUDGET_BYTES)
    tensors = {"embeddings": embeddings(), "large": large()}

    async def keep(request: Request) -> Response:
        """Keep the tensors anew; the time of it and their identities."""
        which, target = request.path_params["which"], store
        if request.path_params["memory"] == "plain":
            target = plain
        target.drop(NAMESPACE, RUN)
        began_s, began_cpu_s = time.perf_counter(), time.process_time()
        identities = kept(target, tensors[which])
        wall_s, cpu_s = time.perf_counter() - began_s, time.process_time() - began_cpu_s
        return Response(orjson.dumps({"kept": identities, "wall_s": wall_s, "cpu_s": cpu_s}))

    async def pickled(request: Request) -> Response:
        return Response(pickle.dumps(tensors[request.path_params["which"]], protocol=5))

    with ThreadPoolExecutor(1) as threads:
        routes = [
            Route("/keep/{memory}/{which}", keep),
            Route("/pickle/{which}", pickled),
            *tensor_routes(plain, threads),
        ]
        listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
        listener.setblocking(False)
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        sockets = HostSockets(HostFolder(folder, 0))
        blocks = BlockServer(sockets, address, store, PodSecret(), threads)
        server = uvicorn.Server(
            uvicorn.Config(Starlette(routes=routes), log_config=None, lifespan="off")
        )
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(blocks.run())
            while not sockets.may_have(address):  # noqa: ASYNC110 - made by another thread
                await asyncio.sleep(0.01)
            print(orjson.dumps({"address": address}).decode(), flush=True)
            await server.serve(sockets=[listener])


if __name__ == "__main__":
    torch.set_num_threads(1)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(Path(sys.argv[1])))
