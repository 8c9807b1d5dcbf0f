"""LitServe with a model that answers a constant; runs in the peers' environment.

`python -m benchmarks.proxy.peers.lit_serve PORT PATH`.
"""

from __future__ import annotations

import sys
from typing import Any

import litserve  # type: ignore[import-not-found]  # lives in the peers' environment


class Constant(litserve.LitAPI):  # type: ignore[misc]  # untyped here
    """Answers a constant."""

    def setup(self, device: str) -> None:
        """Nothing to load."""

    def decode_request(self, request: dict[str, Any]) -> Any:
        """What the caller sent."""
        return request["instances"]

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
