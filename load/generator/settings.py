"""Settings of a run, the same in every worker process; contents of requests; progress."""

import base64
import json
import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from load.errors import GeneratorError
from registry.domain.application import Penalty


@dataclass(frozen=True, slots=True)
class ExampleRules:
    """Where an application's examples are, and how its responses are judged."""

    path: str
    output: str = "label"
    penalty: Penalty = Penalty.SIGMOID
    deadline_s: float | None = None
    """Of requests without one in the trace; None: lateness costs nothing."""


_IMAGE_SUFFIXES: Final = {".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp"}


_ONE_NEEDED: Final = frozenset(("transformers", "diffusers"))
"""Platforms of models whose inputs after the first are options."""


class ContentKind(StrEnum):
    TEXT = "text"
    IMAGE = "image"
    TENSORS = "tensors"
    """Random numbers in the shapes of the metadata."""
    BODY = "body"
    """A whole request body from the user."""
    EXAMPLES = "examples"
    """Labelled examples of an application, one per request."""


@dataclass(frozen=True, slots=True)
class Content:
    kind: ContentKind = ContentKind.TEXT
    tensor: str = "text"
    """Name of the V2 input."""
    data: str = ""
    """The body or image in base64; empty: images are generated."""
    inputs: tuple[tuple[str, str, tuple[int, ...]], ...] = ()
    """For `TENSORS`: name, datatype and shape, -1 for a variable size."""
    examples: ExampleRules | None = None
    """For `EXAMPLES`."""


TEXT: Final = Content()
IMAGE: Final = Content(ContentKind.IMAGE, "image")


def read_payloads(options: Sequence[str]) -> dict[str, Content]:
    """Contents by model of `MODEL=FILE`, `MODEL=text` or `MODEL=image`. Raises GeneratorError."""
    found: dict[str, Content] = {}
    problems = []
    for option in options:
        model, equals, value = option.partition("=")
        if not (model and equals and value):
            problems.append(f"--payload must be MODEL=FILE, =text or =image, was {option!r}")
            continue
        try:
            found[model] = _read_payload(value)
        except (OSError, ValueError) as error:
            problems.append(f"--payload {option}: {error}")
    if problems:
        raise GeneratorError("\n".join(problems))
    return found


def _read_payload(value: str) -> Content:
    if value in ("text", "image"):
        return TEXT if value == "text" else IMAGE
    path = Path(value).expanduser()
    raw = path.read_bytes()
    data = base64.b64encode(raw).decode()
    if path.suffix.lower() in _IMAGE_SUFFIXES:
        return Content(ContentKind.IMAGE, "image", data)
    try:
        json.loads(raw)
    except ValueError as error:
        raise ValueError(f"must be an image or a JSON body: {error}") from error
    return Content(ContentKind.BODY, data=data)


def content_of_metadata(metadata: Any) -> Content | None:
    """Content that fits the inputs of V2 metadata; None for metadata without inputs."""
    try:
        inputs = [
            (str(each["name"]), str(each["datatype"]), tuple(map(int, each["shape"])))
            for each in metadata["inputs"]
        ]
    except (KeyError, TypeError, ValueError):
        return None
    if not inputs:
        return None
    first, datatype, _ = inputs[0]
    if datatype == "BYTES" and (len(inputs) == 1 or metadata.get("platform") in _ONE_NEEDED):
        is_image = "image" in first.lower()
        return Content(ContentKind.IMAGE if is_image else ContentKind.TEXT, first)
    return Content(ContentKind.TENSORS, inputs=tuple(inputs))


LATE_S: Final = 0.01
"""A request that is sent later than this after its scheduled time counts as late."""
MAX_IN_FLIGHT: Final = 4096
TIMEOUT_S: Final = 300.0
SERVER_NAME: Final = "pilotlight"
"""Name of Pilotlight's gateway and pods in the server metadata of the V2 protocol."""


class RequestProtocol(StrEnum):
    V1 = "v1"
    V2 = "v2"
    OPENAI = "openai"


class Layout(StrEnum):
    """How paths of the target name a model."""

    GATEWAY = "gateway"
    """`/serving/NAMESPACE/NAME/…`: the tenant is the namespace."""
    POD = "pod"
    """`/v1/models/NAMESPACE~NAME:predict`: a Pilotlight pod without a gateway."""
    PLAIN = "plain"
    """`/v1/models/NAME:predict`: any KServe predictor; tenants are not sent."""


@dataclass(frozen=True, slots=True)
class RunSettings:
    trace: str
    url: str
    protocol: RequestProtocol = RequestProtocol.V1
    layout: Layout = Layout.PLAIN
    policy: str | None = None
    host_header: str | None = None
    processes: int = 1
    duration_s: float | None = None
    seed: int = 0
    max_in_flight: int = MAX_IN_FLIGHT
    """Over all processes, at least one each; a request beyond it is an error and is not sent."""
    timeout_s: float = TIMEOUT_S
    payloads: dict[str, Content] = field(default_factory=dict)
    """By `tenant/model`, or by `model`."""
    key: str = field(default="", repr=False)
    """API key or token that every request carries, if any."""

    @property
    def credentials(self) -> dict[str, str]:
        """Headers of every request, also of those before and after the run."""
        return {"authorization": f"Bearer {self.key}"} if self.key else {}

    def worker_max_in_flight(self, worker: int) -> int:
        """One worker's share of `max_in_flight`; the shares of all add up to it."""
        share, rest = divmod(self.max_in_flight, self.processes)
        return share + (worker < rest)


_MIN_S: Final = 1e-5
_LOG_WIDTH: Final = math.log(1.05)


class LatencyHistogram(Counter[int]):
    """Counts by bucket; buckets are 5 % wide."""

    def observe(self, latency_s: float) -> None:
        self[int(math.log(max(latency_s, _MIN_S) / _MIN_S) / _LOG_WIDTH)] += 1

    def percentile_s(self, fraction: float) -> float:
        """The upper bound of the bucket with a percentile; NaN without any counts."""
        wanted = fraction * self.total()
        seen = 0
        for bucket in sorted(self):
            seen += self[bucket]
            if seen >= wanted:
                return _MIN_S * math.exp((bucket + 1) * _LOG_WIDTH)
        return math.nan


@dataclass(slots=True)
class SendCounts:
    """Requests so far, of one worker or of all."""

    due: int = 0
    done: int = 0
    in_flight: int = 0
    late: int = 0
    by_status: Counter[int] = field(default_factory=Counter)
    latencies: LatencyHistogram = field(default_factory=LatencyHistogram)
    """Latencies of requests without an error."""


@dataclass(slots=True)
class RunProgress(SendCounts):
    requests: int = 0
    """Number of requests in the whole trace."""

    @property
    def failed(self) -> int:
        """Requests without a 2xx response."""
        return sum(n for status, n in self.by_status.items() if not 200 <= status < 300)


def total_progress(requests: int, reports: Collection[Mapping[str, Any]]) -> RunProgress:
    """The progress of a run from the latest report of each worker: SendCounts as JSON."""
    total = RunProgress(requests=requests)
    for each in reports:
        total.due += each["due"]
        total.done += each["done"]
        total.in_flight += each["in_flight"]
        total.late += each["late"]
        total.by_status.update({int(key): count for key, count in each["by_status"].items()})
        total.latencies.update({int(key): count for key, count in each["latencies"].items()})
    return total
