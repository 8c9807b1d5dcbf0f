"""A transformer and explainer as KServe's users write them, on KServe's own server.

Names of Services resolve to this machine, as a cluster's DNS resolves them to the gateway.
"""

import argparse
import socket
from typing import Any

from kserve import InferInput, InferRequest, Model, ModelServer
from kserve.predictor_config import PredictorConfig

_resolve = socket.getaddrinfo


def _resolve_here(host: Any, *more: Any, **options: Any) -> Any:
    name = host.decode() if isinstance(host, bytes) else str(host)
    return _resolve("127.0.0.1" if "-predictor." in name else host, *more, **options)


class Halving(Model):  # type: ignore[misc]  # kserve has no types
    """Halves the numbers before the predictor sees them; its response says what it was sent."""

    def __init__(self, name: str, protocol: str, host: str) -> None:
        super().__init__(name)
        self._config = PredictorConfig(host, protocol, predictor_request_timeout_seconds=30)
        self.ready = True

    @property
    def predictor_config(self) -> PredictorConfig:
        return self._config

    async def preprocess(self, payload: Any, headers: Any = None) -> Any:
        if isinstance(payload, InferRequest):
            found = payload.inputs[0]
            halved = InferInput(found.name, found.shape, found.datatype)
            halved.set_data_from_numpy(found.as_numpy() / 2, binary_data=False)
            return InferRequest(self.name, [halved])
        return {"instances": [[each / 2 for each in row] for row in payload["instances"]]}

    async def postprocess(self, result: Any, headers: Any = None, more: Any = None) -> Any:
        if isinstance(result, dict):
            return {**result, "seen": dict(headers)}
        result.parameters = {"by": "transformer"}
        return result

    async def explain(self, payload: Any, headers: Any = None) -> Any:
        """Which class each row would have without its last column."""
        rows = [[*row[:-1], 0.0] for row in payload["instances"]]
        found = await self.predict({"instances": rows}, headers)
        return {"explanations": found["predictions"]}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--serve", action="append", help="NAME=PROTOCOL=PREDICTOR_HOST")
    parser.add_argument("--http-port-here", type=int)
    options, _ = parser.parse_known_args()
    socket.getaddrinfo = _resolve_here
    models = [Halving(*each.split("=")) for each in options.serve]
    ModelServer(http_port=options.http_port_here, enable_grpc=False, event_loop="asyncio").start(
        models
    )


if __name__ == "__main__":
    main()
