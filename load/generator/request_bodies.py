"""Request bodies: an arrival and the content of its model, encoded in the protocol of the run.

`input_size` counts items (texts, images, rows of a batch), each text of eight words; for OpenAI's
completions it counts the words of the prompt, about one token each.
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from load.generator.content import Content, ContentKind
from load.generator.labelled_bodies import LabelledBodies
from load.generator.settings import RequestProtocol
from load.generator.synthetic_content import SyntheticText, synthetic_image
from runtime.wire.tensors import BYTES, NUMPY_OF, Tensor, bytes_tensor
from runtime.wire.v2 import encode_request

if TYPE_CHECKING:
    from load.generator.example_rules import ExampleRules
    from load.generator.trace_arrivals import TraceArrival

_WORDS_PER_ITEM: Final = 8
_JSON: Final = (("content-type", "application/json"),)


@dataclass(frozen=True, slots=True)
class RequestBody:
    """Bytes to send, and the headers that describe them."""

    data: bytes
    headers: tuple[tuple[str, str], ...] = _JSON
    is_streamed: bool = False
    """Whether it requests server-sent events."""
    label: int | None = None
    """The right answer, where it is known."""


class RequestBodies:
    """Encodes bodies; the same seed, row and content give the same bytes."""

    def __init__(self, protocol: RequestProtocol, seed: int) -> None:
        self._protocol = protocol
        self._seed = seed
        self._text = SyntheticText(seed)
        self._labelled: dict[str, LabelledBodies] = {}

    def _labelled_bodies(self, rules: ExampleRules) -> LabelledBodies:
        if rules.path not in self._labelled:
            self._labelled[rules.path] = LabelledBodies(rules, self._seed)
        return self._labelled[rules.path]

    def body(self, arrival: TraceArrival, content: Content) -> RequestBody:
        if content.examples is not None:
            labelled = self._labelled_bodies(content.examples).body(arrival)
            return RequestBody(labelled.data, label=labelled.label)
        if content.kind is ContentKind.BODY:
            return RequestBody(base64.b64decode(content.data))
        if self._protocol is RequestProtocol.OPENAI:
            return self._openai(arrival)
        if self._protocol is RequestProtocol.V1:
            return _json({"instances": self._instances(arrival, content)})
        encoded = encode_request(self.tensors(arrival, content))
        return RequestBody(encoded.content, encoded.headers)

    def tensors(self, arrival: TraceArrival, content: Content) -> list[Tensor]:
        """The V2 inputs of one request."""
        if content.kind is ContentKind.TENSORS:
            return [self._random_tensor(arrival, *each) for each in content.inputs]
        return [bytes_tensor(content.tensor, self._items(arrival, content))]

    def _items(self, arrival: TraceArrival, content: Content) -> list[bytes]:
        count = max(1, arrival.input_size)
        if content.kind is ContentKind.IMAGE and content.data:
            return [content.data.encode()] * count
        rows = range(arrival.row, arrival.row + count)
        if content.kind is ContentKind.IMAGE:
            return [synthetic_image(self._seed, row) for row in rows]
        return [self._text.text(row, _WORDS_PER_ITEM).encode() for row in rows]

    def _instances(self, arrival: TraceArrival, content: Content) -> list[Any]:
        if content.kind is ContentKind.TENSORS and content.inputs[0][1] != BYTES:
            values: list[Any] = self._random_tensor(arrival, *content.inputs[0]).data.tolist()
            return values
        texts = [item.decode() for item in self._items(arrival, content)]
        if content.kind is ContentKind.IMAGE:
            return [{"image_bytes": {"b64": text}} for text in texts]
        return texts

    def _random_tensor(
        self, arrival: TraceArrival, name: str, datatype: str, shape: tuple[int, ...]
    ) -> Tensor:
        variable = [max(1, arrival.input_size), *[1] * len(shape)]
        sizes = tuple(size if size > 0 else variable[axis] for axis, size in enumerate(shape))
        if datatype == BYTES:
            item = self._text.text(arrival.row, _WORDS_PER_ITEM).encode()
            return Tensor(name, datatype, np.full(sizes, item, np.object_))
        values = np.random.default_rng((self._seed, arrival.row)).random(sizes, np.float32)
        if not datatype.startswith("FP"):
            values *= 2  # 0 and 1: within every vocabulary
        return Tensor(name, datatype, values.astype(NUMPY_OF[datatype]))

    def _openai(self, arrival: TraceArrival) -> RequestBody:
        if arrival.output_size <= 0:
            texts = [item.decode() for item in self._items(arrival, Content())]
            return _json({"model": arrival.model, "input": texts})
        prompt = self._text.text(arrival.row, max(1, arrival.input_size))
        fields = {"prompt": prompt, "max_tokens": arrival.output_size, "stream": True}
        usage = {"stream_options": {"include_usage": True}}
        return _json({"model": arrival.model, **fields, **usage}, is_streamed=True)


def _json(document: dict[str, Any], *, is_streamed: bool = False) -> RequestBody:
    return RequestBody(json.dumps(document).encode(), is_streamed=is_streamed)
