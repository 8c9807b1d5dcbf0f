"""Calls a pod with tritonclient and prints the results as JSON; `test_clients` runs it.

A process of its own: Triton's and KServe's generated messages have the same names, and protobuf
takes only one of them in a process.
"""

import argparse
import json
import sys
from typing import Any

import numpy as np


def main() -> int:
    """Run the calls named by the arguments."""
    parser = argparse.ArgumentParser()
    parser.add_argument("transport", choices=["http", "grpc"])
    parser.add_argument("address")
    parser.add_argument("model")
    parser.add_argument("--infer-only", action="store_true", help="what a gateway answers, too")
    arguments = parser.parse_args()
    client = _module(arguments.transport).InferenceServerClient(arguments.address)
    seen = _infer(arguments.transport, client, arguments.model)
    if not arguments.infer_only:
        seen |= _manage(arguments.transport, client, arguments.model)
    client.close()
    json.dump(seen, sys.stdout)
    return 0


def _module(transport: str) -> Any:
    import importlib

    return importlib.import_module(f"tritonclient.{transport}")


def _infer(transport: str, client: Any, model: str) -> dict[str, Any]:
    module = _module(transport)
    seen: dict[str, Any] = {}
    text = module.InferInput("text", [2], "BYTES")
    values = np.array([b"one", "zwölf".encode()], dtype=object)
    if transport == "grpc":
        text.set_data_from_numpy(values)
        forms: dict[str, dict[str, Any]] = {"all": {}, "requested": {"outputs": _wanted(module)}}
    else:
        text.set_data_from_numpy(values, binary_data=True)
        forms = {
            "all": {},
            "requested": {"outputs": _wanted(module, binary_data=True)},
            "json": {"outputs": _wanted(module, binary_data=False)},
        }
    for form, options in forms.items():
        result = client.infer(model, [text], request_id="r-7", **options)
        raw = result.get_response()
        named = raw["id"] if transport == "http" else raw.id
        seen[form] = {"id": named, "embedding": result.as_numpy("embedding").tolist()}
    seen["unknown model"] = _error(transport, client, "nobody", text)
    wrong = module.InferInput("text", [1], "FP32")
    wrong.set_data_from_numpy(np.ones(1, np.float32))
    seen["wrong datatype"] = _error(transport, client, model, wrong)
    return seen


def _wanted(module: Any, **options: Any) -> list[Any]:
    return [module.InferRequestedOutput("embedding", **options)]


def _error(transport: str, client: Any, model: str, tensor: Any) -> str:
    from tritonclient.utils import InferenceServerException

    try:
        client.infer(model, [tensor])
    except InferenceServerException as error:
        return f"{error.status()} {error.message()}"
    return "answered"


def _manage(transport: str, client: Any, model: str) -> dict[str, Any]:
    as_json = {"as_json": True} if transport == "grpc" else {}
    seen: dict[str, Any] = {
        "live": client.is_server_live(),
        "ready": client.is_server_ready(),
        "server": client.get_server_metadata(**as_json),
        "model": client.get_model_metadata(model, **as_json),
    }
    client.unload_model(model)
    seen["ready after unload"] = client.is_model_ready(model)
    if transport == "http":
        seen["index after unload"] = client.get_model_repository_index()
    client.load_model(model)
    seen["ready after load"] = client.is_model_ready(model)
    return seen


if __name__ == "__main__":
    sys.exit(main())
