"""LitServe with a model that answers a constant; runs in the peers' environment.

`python -m benchmarks.proxy.peers.lit_serve PORT PATH`.
"""

# No `from __future__ import annotations`: LitServe reads the parameters' types at run time.
import sys
from typing import Any

import litserve  # type: ignore[import-not-found]  # lives in the peers' environment
from fastapi import Request


class Constant(litserve.LitAPI):  # type: ignore[misc]  # untyped here
    """Answers a constant."""

    def setup(self, device: str) -> None:
        """Nothing to load."""

    def decode_request(self, request: Request) -> Any:
        """What the caller sent."""
        return request["instances"]  # what it hands over is the parsed JSON

    def predict(self, x: Any) -> list[int]:
        """The constant."""
        del x
        return [1]

    def encode_response(self, output: list[int]) -> dict[str, list[int]]:
        """As KServe answers."""
        return {"predictions": output}


if __name__ == "__main__":
    server = litserve.LitServer(Constant(api_path=sys.argv[2]), accelerator="cpu")
    server.run(
        host="127.0.0.1", port=int(sys.argv[1]), generate_client_file=False, log_level="error"
    )
