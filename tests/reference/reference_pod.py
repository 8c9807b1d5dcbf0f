"""One pod that serves all models of the suite, asked by each protocol and moved between tiers."""

import json
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from registry.domain.model import ModelName, ModelSpec, Task
from registry.redis.client import Registry
from tests import servers
from tests.registry.redis.clients import act
from tests.servers import wait_until

BALLAST = "ballast"
"""A model that fills the device: its load moves all others to tier host."""
_REFUSALS = range(400, 600)
_HEAD_LENGTH = "inference-header-content-length"
_NUMPY = {
    **{f"FP{8 * size}": f"<f{size}" for size in (2, 4, 8)},
    **{f"INT{8 * size}": f"<i{size}" for size in (1, 2, 4, 8)},
    **{f"UINT{8 * size}": f"<u{size}" for size in (1, 2, 4, 8)},
    "BOOL": "?",
}


@dataclass(frozen=True)
class Answer:
    """A response; `start`: the tier that its model was loaded from, or warm."""

    status: int
    document: Any
    start: str
    arrays: Mapping[str, np.ndarray[Any, Any]] = field(default_factory=dict)
    """Of V2 in binary."""

    @property
    def error(self) -> str:
        """The message of an answer that is no result."""
        found = self.document.get("error") if isinstance(self.document, dict) else None
        return str(found.get("message") if isinstance(found, dict) else found or self.document)

    def refuses(self, names: Iterable[str]) -> bool:
        """Whether the model was refused by one of these names, and not by a server's error."""
        plain = _plain(self.error)
        is_status = self.status in _REFUSALS and self.status != 500
        return is_status and any(_plain(name) in plain for name in names)

    def results(self) -> Any:
        """The document of an answer that must be a result."""
        assert self.status == 200, f"status {self.status}: {self.error}"
        return self.document


class ReferencePod:
    """Declares models at a running pod and asks them."""

    def __init__(self, pod: servers.Pod, redis_url: str, pool: str) -> None:
        self.pod = pod
        self._redis_url = redis_url
        self._pool = pool
        self._client = httpx.Client(base_url=pod.url, trust_env=False, verify=False, timeout=120)

    def close(self) -> None:
        self._client.close()

    def declare(
        self, name: str, folder: Path, *, form: str = "huggingface", task: Task | None = None
    ) -> ModelSpec:
        """Declare a model by its folder; `form` is its `modelFormat`."""
        spec = ModelSpec(ModelName("default", name), folder.as_uri(), format=form, task=task)
        self._act(lambda registry: registry.put_models([spec]))
        return spec

    def withdraw(self, name: str) -> None:
        self._act(lambda registry: registry.delete_models([ModelName("default", name)]))

    def unload(self, name: str) -> None:
        """Take a model from the device; its files stay on disk."""
        self._client.post(f"/v2/repository/models/default~{name}/unload").raise_for_status()

    def move_to_host(self, spec: ModelSpec) -> None:
        """Take a warm model from the device, and return once tier host has it."""
        self.v1(BALLAST, ["some words"]).results()
        wait_until(lambda: self._tier(spec) == "host", what=f"{spec.key} in host")

    def v1(self, name: str, instances: Sequence[Any]) -> Answer:
        url = f"/v1/models/default~{name}:predict"
        return _answer(self._client.post(url, json={"instances": list(instances)}))

    def v2(self, name: str, inputs: Sequence[Mapping[str, Any]]) -> Answer:
        """V2 in JSON."""
        return _answer(self._client.post(_infer(name), json={"inputs": list(inputs)}))

    def v2_texts(self, name: str, texts: Sequence[str]) -> Answer:
        tensor = {"name": "text", "datatype": "BYTES", "shape": [len(texts)], "data": list(texts)}
        return self.v2(name, [tensor])

    def v2_binary(
        self, name: str, inputs: Mapping[str, tuple[str, np.ndarray[Any, Any]]]
    ) -> Answer:
        """V2 with binary tensors both ways; inputs as (datatype, array)."""
        chunks = [_packed(array) for _, array in inputs.values()]
        described = [
            {
                "name": each,
                "datatype": datatype,
                "shape": list(array.shape),
                "parameters": {"binary_data_size": len(chunk)},
            }
            for (each, (datatype, array)), chunk in zip(inputs.items(), chunks, strict=True)
        ]
        head = json.dumps({"inputs": described, "parameters": {"binary_data_output": True}})
        content = b"".join([head.encode(), *chunks])
        headers = {"content-type": "application/octet-stream", _HEAD_LENGTH: str(len(head))}
        found = self._client.post(_infer(name), content=content, headers=headers)
        if found.status_code != 200:
            return _answer(found)
        length = int(found.headers[_HEAD_LENGTH])
        document = json.loads(found.content[:length])
        arrays = _unpacked(document["outputs"], found.content[length:])
        return Answer(found.status_code, document, _start(found), arrays)

    def v2_binary_texts(self, name: str, texts: Sequence[str]) -> Answer:
        array = np.array([text.encode() for text in texts], dtype=np.object_)
        return self.v2_binary(name, {"text": ("BYTES", array)})

    def complete(self, name: str, prompt: str, max_tokens: int) -> Answer:
        """OpenAI's completions, greedily."""
        body = {"model": name, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0}
        return _answer(self._client.post("/openai/v1/completions", json=body))

    def embed(self, name: str, texts: Sequence[str]) -> Answer:
        """OpenAI's embeddings."""
        body = {"model": name, "input": list(texts)}
        return _answer(self._client.post("/openai/v1/embeddings", json=body))

    def _act(self, action: Callable[[Registry], Any]) -> Any:
        return act(self._redis_url, self._pool, action)

    def _tier(self, spec: ModelSpec) -> str | None:
        async def look(registry: Registry) -> str | None:
            held = (await registry.cluster()).holders(spec.key).get(self.pod.name)
            return held.tier.value if held is not None else None

        tier: str | None = self._act(look)
        return tier


def at_once(asks: Sequence[Callable[[], Answer]]) -> list[Answer]:
    """The answers of requests that are sent together."""
    with ThreadPoolExecutor(len(asks)) as clients:
        return [each.result() for each in [clients.submit(ask) for ask in asks]]


def _packed(array: np.ndarray[Any, Any]) -> bytes:
    """V2's binary form; strings have their length before them."""
    if array.dtype != np.object_:
        return array.tobytes()
    return b"".join(struct.pack("<I", len(each)) + each for each in array.ravel())


def _unpacked(
    outputs: Sequence[Mapping[str, Any]], content: bytes
) -> dict[str, np.ndarray[Any, Any]]:
    arrays, start = {}, 0
    for each in outputs:
        end = start + each["parameters"]["binary_data_size"]
        part, start = content[start:end], end
        if each["datatype"] == "BYTES":
            array: np.ndarray[Any, Any] = np.array(_strings(part), dtype=np.object_)
        else:
            array = np.frombuffer(part, _NUMPY[each["datatype"]])
        arrays[each["name"]] = array.reshape(each["shape"])
    return arrays


def _strings(part: bytes) -> list[bytes]:
    found = []
    while part:
        (length,) = struct.unpack_from("<I", part)
        found.append(part[4 : 4 + length])
        part = part[4 + length :]
    return found


def _infer(name: str) -> str:
    return f"/v2/models/default~{name}/infer"


def _answer(found: httpx.Response) -> Answer:
    try:
        document = found.json()
    except json.JSONDecodeError:
        document = found.text
    return Answer(found.status_code, document, _start(found))


def _start(found: httpx.Response) -> str:
    return str(found.headers.get("x-pilotlight-start", ""))


def _plain(text: str) -> str:
    return text.lower().replace("_", "").replace("-", "")
