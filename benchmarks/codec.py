"""`python -m benchmarks.codec`: decoding and encoding of a large tensor, against KServe's SDK.

One FP32 tensor: the bytes of a request to a numpy array, and a numpy array to the bytes of a
response. Both codecs run in one process, in turns.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import orjson
from kserve import InferOutput, InferRequest, InferResponse

from benchmarks.machine import machine_facts, save
from benchmarks.quantiles import spread
from common.inference_protocol.bodies import (
    LENGTH_HEADER,
    V2Request,
    decode_request,
    encode_request,
    encode_response,
)
from common.inference_protocol.grpc_messages import decode_message, encode_message, messages
from common.inference_protocol.tensors import numeric_tensor

ELEMENTS: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Timed:
    """Times of one step in ms, one per repeat."""

    step: str
    ours_ms: list[float]
    sdk_ms: list[float]

    def row(self) -> str:
        """A row of the table: medians with ranges, and their ratio."""
        ours, sdk = spread(self.ours_ms), spread(self.sdk_ms)
        return (
            f"| {self.step} | {ours.median:.2f} ({ours.lowest:.2f}-{ours.highest:.2f}) |"
            f" {sdk.median:.2f} ({sdk.lowest:.2f}-{sdk.highest:.2f}) |"
            f" {sdk.median / ours.median:.0f} |"
        )


def measure(*, elements: int, repeats: int, seed: int) -> list[Timed]:
    """Time every step of both codecs in turns."""
    values = np.random.default_rng(seed).random(elements, dtype=np.float32)
    ours, sdk = _ours(values), _sdk(values)
    timed = []
    for step in ours:
        np.testing.assert_array_equal(_values(ours[step]()), _values(sdk[step]()))
        taken: tuple[list[float], list[float]] = ([], [])
        for _ in range(repeats):
            for times, work in zip(taken, (ours[step], sdk[step]), strict=True):
                began_s = time.perf_counter()
                work()
                times.append((time.perf_counter() - began_s) * 1000)
        timed.append(Timed(step, *taken))
    return timed


def _ours(values: npt.NDArray[Any]) -> Mapping[str, Callable[[], Any]]:
    tensor = numeric_tensor("x", values)
    binary, as_json, raw, typed = _requests(values)
    wants_binary, wants_json = V2Request((), is_binary=True), V2Request(())

    def write(request: V2Request) -> tuple[bytes, int]:
        body = encode_response([tensor], model_name="m", request=request)
        return body.content, int(dict(body.headers).get(LENGTH_HEADER, len(body.content)))

    def read_message(content: bytes) -> npt.NDArray[Any]:
        return decode_message(messages.ModelInferRequest.FromString(content)).inputs[0].data

    return {
        "REST binary, read": lambda: decode_request(binary[0], str(binary[1])).inputs[0].data,
        "REST binary, write": lambda: write(wants_binary),
        "REST JSON, read": lambda: decode_request(as_json, None).inputs[0].data,
        "REST JSON, write": lambda: write(wants_json),
        "gRPC raw, read": lambda: read_message(raw),
        "gRPC raw, write": lambda: encode_message([tensor], model_name="m", request=wants_binary),
        "gRPC typed, read": lambda: read_message(typed),
        "gRPC typed, write": lambda: encode_message([tensor], model_name="m", request=wants_json),
    }


def _sdk(values: npt.NDArray[Any]) -> Mapping[str, Callable[[], Any]]:
    binary, as_json, raw, typed = _requests(values)

    def respond(*, is_binary: bool) -> InferResponse:
        output = InferOutput("x", list(values.shape), "FP32")
        output.set_data_from_numpy(values, binary_data=is_binary)
        return InferResponse("", "m", [output], use_binary_outputs=is_binary)

    def write(*, is_binary: bool) -> tuple[bytes, int]:
        content, length = respond(is_binary=is_binary).to_rest()
        if isinstance(content, dict):
            content = orjson.dumps(content)
        return content, length or len(content)

    def read_message(content: bytes) -> Any:
        message = messages.ModelInferRequest.FromString(content)
        return InferRequest.from_grpc(message).inputs[0].as_numpy()

    return {
        "REST binary, read": lambda: (
            InferRequest.from_bytes(binary[0], binary[1], "m").inputs[0].as_numpy()
        ),
        "REST binary, write": lambda: write(is_binary=True),
        "REST JSON, read": lambda: (
            InferRequest.from_bytes(as_json, len(as_json), "m").inputs[0].as_numpy()
        ),
        "REST JSON, write": lambda: write(is_binary=False),
        "gRPC raw, read": lambda: read_message(raw),
        "gRPC raw, write": lambda: respond(is_binary=True).to_grpc().SerializeToString(),
        "gRPC typed, read": lambda: read_message(typed),
        "gRPC typed, write": lambda: respond(is_binary=False).to_grpc().SerializeToString(),
    }


def _requests(values: npt.NDArray[Any]) -> tuple[tuple[bytes, int], bytes, bytes, bytes]:
    """The same request in four forms: binary with the length of its JSON, JSON, raw, typed."""
    encoded = encode_request([numeric_tensor("x", values)])
    header = {"name": "x", "datatype": "FP32", "shape": list(values.shape)}
    as_json = orjson.dumps({"inputs": [{**header, "data": values.tolist()}]})
    raw = messages.ModelInferRequest(model_name="m", raw_input_contents=[values.tobytes()])
    raw.inputs.add(**header)
    typed = messages.ModelInferRequest(model_name="m")
    typed.inputs.add(**header).contents.fp32_contents.extend(values.tolist())
    length = int(dict(encoded.headers)[LENGTH_HEADER])
    return (encoded.content, length), as_json, raw.SerializeToString(), typed.SerializeToString()


def _values(result: Any) -> npt.NDArray[Any]:
    """The tensor that a step decoded or encoded."""
    if isinstance(result, np.ndarray):
        return result
    if isinstance(result, bytes):
        response = InferResponse.from_grpc(messages.ModelInferResponse.FromString(result))
    else:
        response = InferResponse.from_bytes(*result)
    return np.asarray(response.outputs[0].as_numpy())


def main() -> None:
    """Measure, print a table, save the raw samples."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.codec", description=__doc__)
    parser.add_argument("--elements", type=int, default=ELEMENTS)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    machine = machine_facts()
    timed = measure(**vars(arguments))
    print(f"{machine.line()}\n\n## {arguments.elements} x FP32, ms: median (range)\n")
    print("| step | ours | KServe's SDK | SDK/ours |\n|---|---|---|---|")
    print("\n".join(each.row() for each in timed))
    path = save("codec", machine, vars(arguments), [asdict(each) for each in timed])
    print(f"\nRaw samples: {path.name}")


if __name__ == "__main__":
    main()
