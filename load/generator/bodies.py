"""Request bodies: an arrival and a model's content, put in the protocol of the run.

Sizes: `input_size` counts items (texts, pictures, rows of a batch), each text of eight words;
for OpenAI's completions it counts the words of the one prompt, about one token each.
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from load.generator.content import Content, ContentKind
from load.generator.settings import RequestProtocol
from load.generator.synthetic_images import picture
from load.generator.synthetic_text import SyntheticText

if TYPE_CHECKING:
    from load.generator.arrivals import TraceArrival

_WORDS_PER_ITEM: Final = 8
_JSON: Final = (("content-type", "application/json"),)
_DTYPES: Final = {
    "BOOL": np.bool_, "UINT8": np.uint8, "UINT16": np.uint16, "UINT32": np.uint32,
    "UINT64": np.uint64, "INT8": np.int8, "INT16": np.int16, "INT32": np.int32,
    "INT64": np.int64, "FP16": np.float16, "FP32": np.float32, "FP64": np.float64,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Body:
    """Bytes to send and the headers that say what they are."""

    data: bytes
    headers: tuple[tuple[str, str], ...] = _JSON
    is_streamed: bool = False
    """Whether the answer was asked for as server-sent events."""


@dataclass(frozen=True, slots=True)
class RawTensor:
    """One V2 input in its binary form."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    data: bytes


class Bodies:
    """Makes bodies; the same seed, row and content give the same bytes."""

    def __init__(self, protocol: RequestProtocol, seed: int) -> None:
        self._protocol = protocol
        self._seed = seed
        self._words = SyntheticText(seed)

    def body(self, arrival: TraceArrival, content: Content) -> Body:
        """The body of one HTTP request."""
        if content.kind is ContentKind.BODY:
            return Body(base64.b64decode(content.data))
        if self._protocol is RequestProtocol.OPENAI:
            return self._openai(arrival)
        if self._protocol is RequestProtocol.V1:
            return Body(json.dumps({"instances": self._instances(arrival, content)}).encode())
        return _binary(self.tensors(arrival, content))

    def tensors(self, arrival: TraceArrival, content: Content) -> list[RawTensor]:
        """The V2 inputs of one request."""
        if content.kind is ContentKind.TENSORS:
            return [self._numbers(arrival, *each) for each in content.inputs]
        items = self._items(arrival, content)
        data = b"".join(len(item).to_bytes(4, "little") + item for item in items)
        return [RawTensor(content.tensor, "BYTES", (len(items),), data)]

    def _items(self, arrival: TraceArrival, content: Content) -> list[bytes]:
        count = max(1, arrival.input_size)
        if content.kind is ContentKind.IMAGE:
            if content.data:
                return [content.data.encode()] * count
            return [picture(self._seed, arrival.row + index) for index in range(count)]
        return [
            self._words.text(arrival.row + index, _WORDS_PER_ITEM).encode()
            for index in range(count)
        ]

    def _instances(self, arrival: TraceArrival, content: Content) -> list[Any]:
        if content.kind is ContentKind.TENSORS:
            tensor = self._numbers(arrival, *content.inputs[0])
            array: np.ndarray[Any, Any] = np.frombuffer(
                tensor.data, _DTYPES[tensor.datatype]
            ).reshape(tensor.shape)
            values: list[Any] = array.tolist()
            return values
        texts = [item.decode() for item in self._items(arrival, content)]
        if content.kind is ContentKind.IMAGE:
            return [{"image_bytes": {"b64": text}} for text in texts]
        return texts

    def _numbers(
        self, arrival: TraceArrival, name: str, datatype: str, shape: tuple[int, ...]
    ) -> RawTensor:
        free = [max(1, arrival.input_size), *[1] * len(shape)]
        sizes = tuple(size if size > 0 else free[at] for at, size in enumerate(shape))
        random = np.random.default_rng((self._seed, arrival.row))
        if datatype == "BYTES":
            text = self._words.text(arrival.row, _WORDS_PER_ITEM).encode()
            one = len(text).to_bytes(4, "little") + text
            return RawTensor(name, datatype, sizes, one * int(np.prod(sizes)))
        values = random.random(sizes, np.float32)
        if not datatype.startswith("FP"):
            values *= 2  # 0 and 1: within every vocabulary
        return RawTensor(name, datatype, sizes, values.astype(_DTYPES[datatype]).tobytes())

    def _openai(self, arrival: TraceArrival) -> Body:
        fields: dict[str, Any] = {"model": arrival.model}
        if arrival.output_size <= 0:
            texts = [item.decode() for item in self._items(arrival, Content())]
            return Body(json.dumps({**fields, "input": texts}).encode())
        fields["prompt"] = self._words.text(arrival.row, max(1, arrival.input_size))
        fields["max_tokens"] = arrival.output_size
        fields["stream"] = True
        return Body(json.dumps(fields).encode(), is_streamed=True)


def _binary(tensors: list[RawTensor]) -> Body:
    """V2's binary tensors: a JSON head, then the bytes of each tensor."""
    head = json.dumps(
        {
            "inputs": [
                {
                    "name": each.name,
                    "shape": each.shape,
                    "datatype": each.datatype,
                    "parameters": {"binary_data_size": len(each.data)},
                }
                for each in tensors
            ],
            "parameters": {"binary_data_output": True},
        }
    ).encode()
    return Body(
        b"".join((head, *(each.data for each in tensors))),
        (
            ("content-type", "application/octet-stream"),
            ("inference-header-content-length", str(len(head))),
        ),
    )
