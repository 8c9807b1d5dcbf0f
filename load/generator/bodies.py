"""Bodies of requests by protocol, and labelled examples that requests carry."""

from __future__ import annotations

import base64
import io
import json
import random
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import orjson

from common.inference_protocol.bodies import encode_request
from common.inference_protocol.tensors import BYTES, NUMPY_OF, Tensor, bytes_tensor
from load.generator.settings import Content, ContentKind, ExampleRules, RequestProtocol
from load.generator.trace_arrivals import TraceArrival
from variants.labelled_examples import LabelledExamples, read_examples
from variants.planning.window import penalty_of_one

if TYPE_CHECKING:
    from load.generator.records import RequestResult


_MAX_CLASSES: Final = 1000
MAX_RESPONSE_BYTES: Final = 1 << 20


def drawn_example(seed: int, row: int, count: int) -> int:
    """Which of `count` examples the request in this row of a trace carries."""
    return random.Random(f"{seed}-{row}").randrange(count)


def read_rules_examples(rules: ExampleRules) -> LabelledExamples:
    """Raises InvalidExamples."""
    return read_examples(Path(rules.path), classes=_MAX_CLASSES, inputs=[], needs_every_class=False)


def example_body(examples: LabelledExamples, row: int) -> bytes:
    """A V2 request for one example."""
    inputs = [
        {
            "name": name,
            "datatype": "FP32",
            "shape": [1, *values.shape[1:]],
            "data": values[row].ravel().tolist(),
        }
        for name, values in examples.inputs.items()
    ]
    return orjson.dumps({"inputs": inputs})


def judge(result: RequestResult, arrival: TraceArrival, rules: ExampleRules, body: bytes) -> None:
    """Set the result's prediction and the utility that it has achieved; a failure has none."""
    result.utility = 0.0
    result.deadline_s = deadline_s = arrival.deadline_s or rules.deadline_s
    if result.error is not None or result.finished_s is None:
        return
    result.prediction = predicted_label(body, rules.output)
    late = 0.0
    if deadline_s is not None:
        late = penalty_of_one(rules.penalty, deadline_s, result.finished_s - arrival.at_s)
    result.utility = (result.prediction == result.label) * (1.0 - late)


def predicted_label(body: bytes, output: str) -> int | None:
    """The first number of an output of a V2 response; None: it has none."""
    try:
        document: Any = orjson.loads(body)
        for each in document["outputs"]:
            if each["name"] == output:
                return int(each["data"][0])
    except (ValueError, KeyError, TypeError, IndexError):
        return None
    return None


_WORDS_PER_ITEM: Final = 8
_JSON: Final = (("content-type", "application/json"),)


_COMMON_WORDS: Final = """
about after again air all also an and answer any are as at away back be because been before
began best better between big book both boy but by call came can car change city close come
could country day did different do does done door down draw each early earth eat end enough
even every example eye face family far farm father feet few find first five follow food for
form found four from full gave get girl give go good got great group grow had half hand hard
has have he head hear help her here high him his home horse hot hour house how idea if in
into is it just keep kind know land large last late learn leave left let letter life light
like line list little live long look made make man many may me mean men might mile more most
mother move much music must my name near need never new next night no north not note now
number of off often old on once one only open or order other our out over own page paper part
people picture place plan plant play point read real right river road room rule run said same
saw say school sea second see seem self sentence set she ship short should show side simple
since small so some song soon sound spell stand start state step still stop story study such
sun sure take talk tell ten than that the their them then there these they thing think this
those thought three through time to together too took top town travel tree try turn two under
until up us use very voice wait walk want war warm was watch water way we week well went were
what when where which while white who whole why will wind with without wood word work world
would write year you young your
"""
_SEQUENCE_WORDS: Final = 4096
_STRIDE: Final = 2_654_435_761
"""Knuth's multiplicative hash: texts of neighbouring rows start far apart in the sequence."""
_IMAGE_PIXELS: Final = 224
_IMAGES: Final = 8


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
    """Encodes bodies in the run's protocol; the same seed, row and content give the same bytes.

    `input_size` counts items (texts of eight words, images, rows of a batch); for OpenAI's
    completions it counts the words of the prompt, about one token each.
    """

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
        return RequestBody(example_body(examples, at), label=int(examples.labels[at]))

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
            return [synthetic_image(self._seed, row % _IMAGES) for row in rows]
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


class SyntheticText:
    """A random sequence of words; a text is a section of it, chosen by the request's row."""

    def __init__(self, seed: int) -> None:
        self._words = random.Random(seed).choices(_COMMON_WORDS.split(), k=_SEQUENCE_WORDS)

    def text(self, row: int, words: int) -> str:
        """A text of `words` words, the same for the same seed, row and length."""
        at = row * _STRIDE % _SEQUENCE_WORDS
        repeats = (at + words) // _SEQUENCE_WORDS + 1
        return " ".join((self._words * repeats)[at : at + words])


@cache
def synthetic_image(seed: int, number: int) -> bytes:
    """A JPEG of 224 x 224 pixels, in base64."""
    from PIL import Image  # of the extras `load` and `runtime`

    rng = np.random.default_rng((seed, number))
    coarse = rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)
    size = (_IMAGE_PIXELS, _IMAGE_PIXELS)
    image = Image.fromarray(coarse).resize(size, Image.Resampling.BICUBIC)
    file = io.BytesIO()
    image.save(file, "JPEG", quality=85)
    return base64.b64encode(file.getvalue())
