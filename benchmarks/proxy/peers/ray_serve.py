"""Ray Serve with one replica that returns a constant; runs in the peers' environment.

`python -m benchmarks.proxy.peers.ray_serve PORT TEMPORARY_FOLDER`. With
RAY_SERVE_ENABLE_HA_PROXY=1 in the environment its HAProxy takes the requests, else its own proxy.
"""

from __future__ import annotations

import signal
import sys
import threading
from typing import Any

import ray  # type: ignore[import-not-found]  # lives in the peers' environment
from ray import serve
from starlette.responses import Response


class ConstantDeployment:
    """Reads the body and returns a constant."""

    async def __call__(self, request: Any) -> Response:
        await request.body()
        return Response(b'{"predictions":[1]}', media_type="application/json")


def main() -> None:
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    ray.init(
        num_cpus=4,
        include_dashboard=False,
        log_to_driver=False,
        object_store_memory=100 << 20,
        _temp_dir=sys.argv[2],
    )
    serve.start(http_options={"host": "127.0.0.1", "port": int(sys.argv[1])})
    deployment = serve.deployment(
        ConstantDeployment, max_ongoing_requests=2048, ray_actor_options={"num_cpus": 1}
    )
    serve.run(deployment.bind(), route_prefix="/")
    print("ready", flush=True)
    stop.wait()
    serve.shutdown()
    ray.shutdown()


if __name__ == "__main__":
    main()
