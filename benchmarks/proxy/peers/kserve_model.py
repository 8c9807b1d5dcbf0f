"""KServe's own ModelServer with a model that returns a constant; there is no proxy.

`python -m benchmarks.proxy.peers.kserve_model PORT`.
"""

import logging
import sys
from typing import Any

import kserve

from benchmarks.proxy.pod import MODEL


class ConstantModel(kserve.Model):  # type: ignore[misc]  # kserve has no types
    """Returns a constant."""

    def __init__(self) -> None:
        super().__init__(MODEL)
        self.ready = True

    async def predict(
        self, payload: Any, headers: Any = None, response_headers: Any = None
    ) -> dict[str, list[int]]:
        del payload, headers, response_headers
        return {"predictions": [1]}


if __name__ == "__main__":
    server = kserve.ModelServer(
        http_port=int(sys.argv[1]),
        workers=1,
        enable_grpc=False,
        enable_docs_url=False,
        enable_latency_logging=False,
    )
    logging.disable(logging.WARNING)
    server.start([ConstantModel()])
