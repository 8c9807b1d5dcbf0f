"""Asks the models of `scripts/demo-formats` by V1, V2 and gRPC, and checks each answer.

`python -m tests.demo_formats GATEWAY-URL GRPC-ADDRESS MODELS [FORMAT …]`
"""

import sys
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import grpc
import httpx
import numpy as np
from rich import print as say

from common.inference_protocol.grpc_messages import INFERENCE, messages
from common.inference_protocol.tensors import NUMPY_OF

ROWS = [[6.8, 2.8, 4.8, 1.4], [5.1, 3.5, 1.4, 0.2]]
CLASSES = [1, 0]
"""Of the rows: versicolor and setosa."""
FORMATS = ("sklearn", "xgboost", "lightgbm", "onnx")
CLIENTS = 8
TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Answer:
    """One small model's first answer."""

    is_right: bool
    start: str
    seconds: float


def main(gateway: str, grpc_address: str, models: int, formats: Sequence[str] = FORMATS) -> int:
    """The exit status: 0 if every answer was right."""
    with (
        httpx.Client(base_url=gateway, timeout=TIMEOUT_S) as client,
        grpc.insecure_channel(grpc_address, [("grpc.enable_http_proxy", 0)]) as channel,
    ):
        wrong = [
            name
            for name in formats
            if not (_ask_format(client, name) and _ask_by_grpc(channel, name))
        ]
        with ThreadPoolExecutor(CLIENTS) as pool:
            answers = list(pool.map(lambda each: _ask_small(client, each), range(1, models + 1)))
    if answers:
        _report(answers)
    return 0 if not wrong and all(each.is_right for each in answers) else 1


def _ask_format(client: httpx.Client, name: str) -> bool:
    v1 = client.post(f"/v1/models/{name}-iris:predict", json={"instances": ROWS})
    tensor = {
        "name": "features",
        "shape": [2, 4],
        "datatype": "FP32",
        "data": np.ravel(ROWS).tolist(),
    }
    v2 = client.post(f"/v2/models/{name}-iris/infer", json={"inputs": [tensor]})
    is_right = (
        v1.status_code == v2.status_code == 200
        and _classes(v1.json()["predictions"]) == CLASSES
        and _classes_of_tensor(v2.json()["outputs"][0]) == CLASSES
    )
    start = v1.headers.get("x-pilotlight-start")
    say(f"{name}: {'right' if is_right else 'WRONG'}, first start {start}; {v1.text[:120]}")
    return is_right


def _ask_by_grpc(channel: grpc.Channel, name: str) -> bool:
    """With the model's name in the metadata, as ModelMesh's clients have it."""
    request = messages.ModelInferRequest()
    request.inputs.add(name="features", datatype="FP32", shape=[len(ROWS), len(ROWS[0])])
    request.raw_input_contents.append(np.asarray(ROWS, np.float32).tobytes())
    call = channel.unary_unary(
        f"/{INFERENCE}/ModelInfer",
        request_serializer=messages.ModelInferRequest.SerializeToString,
        response_deserializer=messages.ModelInferResponse.FromString,
    )
    response = call(request, timeout=TIMEOUT_S, metadata=[("mm-vmodel-id", f"{name}-iris")])
    [output], [raw] = response.outputs, response.raw_output_contents
    classes = np.frombuffer(raw, NUMPY_OF[output.datatype]).reshape(list(output.shape))
    is_right = _classes(classes.tolist()) == CLASSES
    say(f"{name} by gRPC: {'right' if is_right else 'WRONG'}")
    return is_right


def _classes(predictions: Sequence[Any]) -> list[int]:
    """The class of each row, which may be a class, its probabilities, or named outputs."""
    rows = [each["label"] if isinstance(each, dict) else each for each in predictions]
    return [
        int(np.argmax(row)) if isinstance(row, list) and len(row) > 1 else int(np.ravel(row)[0])
        for row in rows
    ]


def _classes_of_tensor(output: dict[str, Any]) -> list[int]:
    return _classes(np.reshape(output["data"], output["shape"]).tolist())


def _ask_small(client: httpx.Client, number: int) -> Answer:
    begun_s = time.monotonic()
    found = client.post(f"/v1/models/small-{number}:predict", json={"instances": ROWS})
    seconds = time.monotonic() - begun_s
    is_right = found.status_code == 200 and _classes(found.json()["predictions"]) == CLASSES
    return Answer(is_right, found.headers.get("x-pilotlight-start", "-"), seconds)


def _report(answers: Sequence[Answer]) -> None:
    times_ms = np.asarray([each.seconds for each in answers]) * 1000
    starts = dict(Counter(each.start for each in answers))
    right = sum(each.is_right for each in answers)
    say(
        f"{right} of {len(answers)} small models answered rightly; starts {starts};"
        f" p50 {np.percentile(times_ms, 50):.0f} ms, p99 {np.percentile(times_ms, 99):.0f} ms"
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4:] or FORMATS))
