"""Third-party clients against a real pod, directly and through the gateway."""

import asyncio
import importlib.util
import json
import subprocess
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import httpx
import numpy as np
import pytest
from kserve import (
    InferenceGRPCClient,
    InferenceRESTClient,
    InferInput,
    InferRequest,
    InferResponse,
    RESTConfig,
)
from kserve.protocol.infer_type import RequestedOutput

from tests import servers
from tests.runtime.conftest import Cluster
from tests.runtime.http import predict

pytestmark = pytest.mark.slow

NEEDS_TRITON = pytest.mark.skipif(
    importlib.util.find_spec("tritonclient") is None, reason="tritonclient is not installed"
)
TEXTS = ("one", "zwölf")


@dataclass(frozen=True)
class Place:
    """A server's URL, and the model's name there."""

    url: str
    model: str

    @property
    def address(self) -> str:
        return self.url.removeprefix("http://")


@dataclass(frozen=True)
class Served:
    """A pod behind a gateway."""

    pod: servers.Pod
    gateway: servers.Gateway
    grpc_port: int

    def place(self, name: str) -> Place:
        """The pod itself, or the gateway."""
        if name == "pod":
            return Place(self.pod.url, "default~embedder")
        return Place(self.gateway.url, "embedder")

    def expected(self) -> np.ndarray:
        """The result that every client must get."""
        return np.array(predict(self.pod.url, "embedder", *TEXTS).json()["predictions"])


@pytest.fixture(scope="module")
def served(shared_cluster: Cluster, models: Path, gateway: servers.Gateway) -> Served:
    shared_cluster.declare("embedder", models / "tiny-bert", task="text-embedding")
    shared_cluster.declare("eye", models / "tiny-vit")
    port = servers.free_port()
    pod = shared_cluster.pod(slots=4, grpc_port=port)
    return Served(pod, gateway, port)


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Removes proxies from the environment, which the clients read."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


BOTH = pytest.mark.parametrize("through", ["pod", "gateway"])


def with_rest_client(protocol: str, use: Callable[[InferenceRESTClient], Awaitable[Any]]) -> Any:
    async def run() -> Any:
        client = InferenceRESTClient(RESTConfig(protocol=protocol))
        try:
            return await use(client)
        finally:
            await client.close()

    return asyncio.run(run())


def infer_v2(place: Place, request: InferRequest) -> Any:
    return with_rest_client("v2", lambda client: client.infer(place.url, request, place.model))


def text_request(model: str, *, is_binary: bool, outputs: list[RequestedOutput]) -> InferRequest:
    text = InferInput("text", [len(TEXTS)], "BYTES")
    text.set_data_from_numpy(np.array(TEXTS, dtype=object), binary_data=is_binary)
    return InferRequest(model, [text], request_id="r-1", request_outputs=outputs or None)


def embedding_of(response: InferResponse) -> np.ndarray:
    (output,) = response.outputs
    assert (output.name, output.datatype, response.id) == ("embedding", "FP32", "r-1")
    return np.asarray(output.as_numpy())


@BOTH
def test_kserve_rest_client_v1(served: Served, through: str) -> None:
    place = served.place(through)
    response = with_rest_client(
        "v1", lambda client: client.infer(place.url, {"instances": list(TEXTS)}, place.model)
    )
    np.testing.assert_allclose(response["predictions"], served.expected(), rtol=1e-5)


@BOTH
@pytest.mark.parametrize("is_binary", [True, False], ids=["binary", "json"])
def test_kserve_rest_client_v2(served: Served, through: str, is_binary: bool) -> None:
    place = served.place(through)
    outputs = [RequestedOutput("embedding", {"binary_data": is_binary})]
    for wanted in (outputs, []):
        request = text_request(place.model, is_binary=is_binary, outputs=wanted)
        response = infer_v2(place, request)
        np.testing.assert_allclose(embedding_of(response), served.expected(), rtol=1e-5)


@BOTH
def test_kserve_rest_client_sends_pixels(served: Served, through: str) -> None:
    """Half a megabyte of binary tensor, also through the gateway."""
    place = served.place(through)
    pixels = np.random.default_rng(0).integers(0, 255, (4, 224, 224, 3), dtype=np.uint8)
    image = InferInput("image", list(pixels.shape), "UINT8")
    image.set_data_from_numpy(pixels, binary_data=True)
    model = place.model.replace("embedder", "eye")
    request = InferRequest(model, [image], parameters={"binary_data_output": True})
    response = infer_v2(Place(place.url, model), request)
    outputs = {output.name: output.as_numpy() for output in response.outputs}
    assert outputs["label"].shape == outputs["score"].shape == (4,)
    assert outputs["score"].dtype == np.float32


@BOTH
@pytest.mark.parametrize("protocol", ["v1", "v2"])
def test_kserve_rest_client_health(served: Served, through: str, protocol: str) -> None:
    place = served.place(through)
    predict(served.pod.url, "embedder", "x")

    async def look(client: InferenceRESTClient) -> list[bool]:
        seen = [
            await client.is_server_live(place.url),
            await client.is_model_ready(place.url, place.model),
        ]
        if protocol == "v2":
            seen.append(await client.is_server_ready(place.url))
        return seen

    assert all(with_rest_client(protocol, look))


@BOTH
def test_kserve_rest_client_raises_errors(served: Served, through: str) -> None:
    place = served.place(through)
    request = text_request("nobody", is_binary=True, outputs=[])
    with pytest.raises(httpx.HTTPStatusError, match="404") as caught:
        infer_v2(Place(place.url, "nobody"), request)
    assert "nobody" in str(caught.value)


def with_grpc_client(
    served: Served, use: Callable[[InferenceGRPCClient], Awaitable[Any]], **options: Any
) -> Any:
    async def run() -> Any:
        async with InferenceGRPCClient(f"127.0.0.1:{served.grpc_port}", **options) as client:
            return await use(client)

    return asyncio.run(run())


@pytest.mark.parametrize("is_binary", [True, False], ids=["raw", "typed"])
def test_kserve_grpc_client_infers(served: Served, is_binary: bool) -> None:
    request = text_request("default~embedder", is_binary=is_binary, outputs=[])
    response = with_grpc_client(served, lambda client: client.infer(request))
    np.testing.assert_allclose(embedding_of(response), served.expected(), rtol=1e-5)


def test_kserve_grpc_client_health(served: Served) -> None:
    predict(served.pod.url, "embedder", "x")

    async def look(client: InferenceGRPCClient) -> list[bool]:
        return [
            await client.is_server_live(),
            await client.is_server_ready(),
            await client.is_model_ready("default~embedder"),
        ]

    assert with_grpc_client(served, look) == [True, True, True]


def test_kserve_grpc_client_raises_errors(served: Served) -> None:
    request = text_request("nobody", is_binary=True, outputs=[])
    with pytest.raises(grpc.RpcError) as caught:
        with_grpc_client(served, lambda client: client.infer(request))
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND


def run_triton(transport: str, address: str, model: str, *options: str) -> dict[str, Any]:
    """The program's results; fails with its own error."""
    program = [
        sys.executable,
        "-m",
        "tests.runtime.protocols.triton_client",
        transport,
        address,
        model,
    ]
    process = subprocess.run(
        [*program, *options],
        cwd=servers.REPOSITORY,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    seen: dict[str, Any] = json.loads(process.stdout)
    return seen


def assert_inferred(seen: dict[str, Any], expected: np.ndarray) -> None:
    for form in {"all", "requested", "json"} & seen.keys():
        assert seen[form]["id"] == "r-7"
        np.testing.assert_allclose(seen[form]["embedding"], expected, rtol=1e-5)


@NEEDS_TRITON
@BOTH
def test_tritonclient_over_http(served: Served, through: str) -> None:
    place = served.place(through)
    options = ["--infer-only"] if through == "gateway" else []
    seen = run_triton("http", place.address, place.model, *options)
    assert_inferred(seen, served.expected())
    assert seen["unknown model"].startswith("404")
    assert seen["wrong datatype"].startswith("400")
    assert "must be BYTES, was FP32" in seen["wrong datatype"]
    if through == "pod":
        assert_managed(seen)
        states = {entry["name"]: entry["state"] for entry in seen["index after unload"]}
        assert states["default~embedder"] == "UNAVAILABLE"


@NEEDS_TRITON
def test_tritonclient_over_grpc(served: Served) -> None:
    seen = run_triton("grpc", f"127.0.0.1:{served.grpc_port}", "default~embedder")
    assert_inferred(seen, served.expected())
    assert seen["unknown model"].startswith("StatusCode.NOT_FOUND")
    assert seen["wrong datatype"].startswith("StatusCode.INVALID_ARGUMENT")
    assert_managed(seen)


def assert_managed(seen: dict[str, Any]) -> None:
    assert seen["live"] is seen["ready"] is seen["ready after load"] is True
    assert seen["ready after unload"] is False
    assert seen["server"]["name"] == "pilotlight"
    assert [each["name"] for each in seen["model"]["outputs"]] == ["embedding"]
