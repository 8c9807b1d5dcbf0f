"""Ray Serve with one replica that returns a constant; runs in the peers' environment.

`python -m benchmarks.proxy.peers.ray_serve PORT TEMPORARY_FOLDER`. With
RAY_SERVE_ENABLE_HA_PROXY=1 in the environment its HAProxy takes the requests, else its own proxy.
"""

import sys
from typing import Any

from ray import serve  # type: ignore[import-not-found]  # lives in the peers' environment
from starlette.responses import Response

from benchmarks.proxy.peers.ray_session import serving


class ConstantDeployment:
    """Reads the body and returns a constant."""

    async def __call__(self, request: Any) -> Response:
        await request.body()
        return Response(b'{"predictions":[1]}', media_type="application/json")


def main() -> None:
    with serving(int(sys.argv[1]), sys.argv[2]):
        deployment = serve.deployment(
            ConstantDeployment, max_ongoing_requests=2048, ray_actor_options={"num_cpus": 1}
        )
        serve.run(deployment.bind(), route_prefix="/")
        print("ready", flush=True)


if __name__ == "__main__":
    main()
