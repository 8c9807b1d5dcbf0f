"""LitServe with a model that returns a constant; runs in the peers' environment.

`python -m benchmarks.proxy.peers.lit_serve PORT PATH`.
"""

# No `from __future__ import annotations`: LitServe reads the parameters' types at run time.
import sys
from typing import Any

import litserve  # type: ignore[import-not-found]  # lives in the peers' environment
from fastapi import Request


class ConstantLitApi(litserve.LitAPI):  # type: ignore[misc]  # untyped here
    """Returns a constant."""

    def setup(self, device: str) -> None:
        """Do nothing: there is no model to load."""

    def decode_request(self, request: Request) -> Any:
        return request["instances"]  # LitServe passes the parsed JSON

    def predict(self, x: Any) -> list[int]:
        del x
        return [1]

    def encode_response(self, output: list[int]) -> dict[str, list[int]]:
        return {"predictions": output}


if __name__ == "__main__":
    server = litserve.LitServer(ConstantLitApi(api_path=sys.argv[2]), accelerator="cpu")
    server.run(
        host="127.0.0.1", port=int(sys.argv[1]), generate_client_file=False, log_level="error"
    )
