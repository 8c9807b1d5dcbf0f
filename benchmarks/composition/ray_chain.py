"""The chain as a composition of Ray Serve; runs in the peers' environment.

`python -m benchmarks.composition.ray_chain PORT TEMPORARY_FOLDER PROGRAM PACKAGES`: an ingress
calls the deployment of one model by its handle, one step after the other; one replica of each. The
model is also its own application, for direct requests. PACKAGES: the folder torch is read from.
"""

import sys
import time
from typing import Any

import numpy as np
from ray import serve  # type: ignore[import-not-found]  # lives in the peers' environment
from starlette.responses import JSONResponse

from benchmarks.proxy.peers.ray_session import serving


class ModelDeployment:
    """One exported program."""

    def __init__(self, program: str, packages: str) -> None:
        sys.path.append(packages)
        import torch

        torch.set_num_threads(1)
        self._torch = torch
        self._network = torch.export.load(program).module()

    async def infer(self, rows: Any) -> Any:
        with self._torch.inference_mode():
            return self._network(self._torch.from_numpy(rows))["y"].numpy()

    async def __call__(self, request: Any) -> JSONResponse:
        """A request of the Open Inference Protocol with one input."""
        tensor = (await request.json())["inputs"][0]
        found = await self.infer(np.asarray(tensor["data"], np.float32).reshape(tensor["shape"]))
        output = {"name": "y", "datatype": "FP32", "shape": found.shape, "data": found.tolist()}
        return JSONResponse({"model_name": "mlp", "outputs": [output]})


class ChainDeployment:
    """Calls the model `count` times, each time with what it returned."""

    def __init__(self) -> None:
        self._model = serve.get_app_handle("model").infer

    async def __call__(self, request: Any) -> JSONResponse:
        arguments = await request.json()
        rows, called_s = np.asarray([arguments["x"]], np.float32), []
        for _ in range(arguments["count"]):
            called_s.append(time.perf_counter())
            rows = await self._model.remote(rows)
        return JSONResponse({"result": rows[0].tolist(), "called_s": called_s})


def main() -> None:
    port, folder, program, packages = sys.argv[1:]
    with serving(int(port), folder):
        options = {"max_ongoing_requests": 100, "ray_actor_options": {"num_cpus": 0.5}}
        model = serve.deployment(ModelDeployment, **options).bind(program, packages)
        serve.run(model, name="model", route_prefix="/model")
        chain = serve.deployment(ChainDeployment, **options).bind()
        serve.run(chain, name="chain", route_prefix="/chain")


if __name__ == "__main__":
    main()
