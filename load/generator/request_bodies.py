"""Request bodies: an arrival and the content of its model, encoded in the protocol of the run.

`input_size` counts items (texts, images, rows of a batch), each text of eight words; for OpenAI's
completions it counts the words of the prompt, about one token each.
"""

import base64
import json
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import orjson

from common.inference_protocol.bodies import encode_request
from common.inference_protocol.tensors import BYTES, NUMPY_OF, Tensor, bytes_tensor
from load.generator.content import Content, ContentKind, ExampleRules
from load.generator.labelled_bodies import drawn_example, read_rules_examples
from load.generator.settings import RequestProtocol
from load.generator.synthetic_content import SyntheticText, synthetic_image
from load.generator.trace_arrivals import TraceArrival
from load.labelled_examples import LabelledExamples

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
        self._examples: dict[str, LabelledExamples] = {}

    def _labelled(self, arrival: TraceArrival, rules: ExampleRules) -> RequestBody:
        """A V2 body with one example, drawn by seed and row of the trace."""
        if rules.path not in self._examples:
            self._examples[rules.path] = read_rules_examples(rules)
        examples = self._examples[rules.path]
        at = drawn_example(self._seed, arrival.row, len(examples.labels))
        inputs = [
            {
                "name": name, "datatype": "FP32", "shape": [1, *values.shape[1:]],
                "data": values[at].ravel().tolist(),
            }
            for name, values in examples.inputs.items()
        ]  # fmt: skip
        return RequestBody(orjson.dumps({"inputs": inputs}), label=int(examples.labels[at]))

    def body(self, arrival: TraceArrival, content: Content) -> RequestBody:
        if content.examples is not None:
            return self._labelled(arrival, content.examples)
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
        if content.kind is ContentKind.TENSORS:
            columns = {each[0]: self._values(arrival, *each) for each in content.inputs}
            if len(columns) > 1:  # an object per item, as both we and TensorFlow Serving read it
                rows = zip(*columns.values(), strict=True)
                return [dict(zip(columns, row, strict=True)) for row in rows]
            return next(iter(columns.values()))
        texts = [item.decode() for item in self._items(arrival, content)]
        if content.kind is ContentKind.IMAGE:
            return [{"image_bytes": {"b64": text}} for text in texts]
        return texts

    def _values(
        self, arrival: TraceArrival, name: str, datatype: str, shape: tuple[int, ...]
    ) -> list[Any]:
        """A random tensor as JSON, item by item."""
        data = self._random_tensor(arrival, name, datatype, shape).data
        if datatype == BYTES:
            data = np.vectorize(bytes.decode, otypes=[object])(data)
        values: list[Any] = data.tolist()
        return values

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
