"""Models: identity, specification as declared, policy, and the record in the registry.

Value types only; `registry.inference_service` parses YAML and annotations into them.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple


class Answers(StrEnum):
    """Forms of answers, as annotation values."""

    OWN = "pilotlight"
    KSERVE = "kserve"
    """Those of KServe's Hugging Face server."""


class Scores(StrEnum):
    """What a classification answers, as annotation values."""

    BEST = "best"
    """The likeliest class."""
    ALL = "all"
    """The score of every class."""
    LOGITS = "logits"
    """The network's output for every class, as it is."""


@dataclass(frozen=True, slots=True)
class TaskOptions:
    answers: Answers = Answers.OWN
    scores: Scores = Scores.BEST
    max_tokens: int | None = None
    """Texts are cut there; None: at the model's own limit, which holds in any case."""
    keeps_case: bool = False
    """The tokenizer does not change letters to lower case."""
    adds_special_tokens: bool = True
    """Tokens such as `[CLS]` are put around each text."""


OWN: Final = TaskOptions()
"""Where nothing is asked for."""


class Tier(StrEnum):
    """Places of a model's weights, as seen from a pod, from fastest to slowest."""

    DEVICE = "device"
    HOST = "host"
    DISK = "disk"
    REMOTE = "remote"


class Task(StrEnum):
    """Tasks of models, named as at Hugging Face."""

    TEXT_EMBEDDING = "text-embedding"
    TEXT_TO_TEXT = "text2text-generation"
    TEXT_GENERATION = "text-generation"
    TEXT_CLASSIFICATION = "text-classification"
    TOKEN_CLASSIFICATION = "token-classification"
    FILL_MASK = "fill-mask"
    IMAGE_CLASSIFICATION = "image-classification"
    TEXT_TO_IMAGE = "text-to-image"
    TABULAR_CLASSIFICATION = "tabular-classification"
    """Of scikit-learn: the probabilities of the classes, not the class."""


class Precision(StrEnum):
    """Types of a model's weights on the device, where it is not that of its files."""

    AUTO = "auto"
    """As the files have it."""
    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"


class EngineChoice(StrEnum):
    """What runs a model of transformers, as flags and annotation values."""

    AUTO = "auto"
    """vLLM for text generation where the pod has it and it knows the architecture, llama.cpp for
    GGUF files."""
    VLLM = "vllm"
    LLAMA_CPP = "llama.cpp"
    OWN = "own"


class LoadingPolicyName(StrEnum):
    """Loading policies of the autoscaler, as flags and annotation values."""

    PREDICTIVE = "predictive"
    KEEP_ALIVE = "keep-alive"
    CLOCKWORK = "clockwork"


class PlacementName(StrEnum):
    """Planners of placements, as flags and annotation values."""

    OFF = "off"
    PREDICTED_GOODPUT = "predicted-goodput"


class RoutingPolicy(StrEnum):
    """Routing policies of the gateway, as annotation values."""

    AUTO = "auto"
    COLOCATION = "colocation"
    COLOCATION_QUEUEING = "colocation-queueing"
    REMOTE_PROXY = "remote-proxy"
    RANDOM = "random"
    ROUND_ROBIN = "round-robin"
    LEAST_LOADED = "least-loaded"


class Preload(StrEnum):
    """When a model is loaded ahead of requests."""

    PREDICTIVE = "predictive"
    EAGER = "eager"
    OFF = "off"


class ModelName(NamedTuple):
    """`namespace/name` of an InferenceService; the namespace is the tenant.

    A tuple for its fast hash, which is computed several times per request.
    """

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def path_segment(self) -> str:
        """The name as one URL path segment, as used at pods: `namespace~name`."""
        return f"{self.namespace}~{self.name}"

    @classmethod
    def from_path_segment(cls, segment: str) -> ModelName:
        """Read `namespace~name`, or a bare `name` in the namespace `default`."""
        namespace, found, name = segment.partition("~")
        return cls(namespace, name) if found else cls("default", segment)

    @classmethod
    def parse(cls, text: str) -> ModelName:
        """Read `namespace/name`, or a bare `name` in the namespace `default`."""
        namespace, found, name = text.partition("/")
        return cls(namespace, name) if found else cls("default", text)


@dataclass(frozen=True, slots=True)
class ModelPolicy:
    """How a model is served: its `pilotlight.io/` annotations as types. Times in seconds."""

    routing: str = RoutingPolicy.AUTO
    target_ongoing_requests: int = 3
    """Requests in inference at which a pod gets no more by remote proxying.

    Liu 2025, section 4.6, default 3.
    """
    queue_depth: int = 1024
    """Maximum number of queued requests; further requests get 429."""
    queue_timeout_s: float = 60.0
    deadline_s: float | None = None
    """Time from arrival at the gateway."""
    priority: int = 0
    """Within a tenant, higher priorities are served first."""
    min_copies: int = 0
    max_copies: int | None = None
    keep_alive_s: float | None = None
    """How long an idle model stays on the device; None: by forecast."""
    pin: bool = False
    """Never evicted once on the device."""
    preload: Preload = Preload.PREDICTIVE
    preload_tier: Tier = Tier.DEVICE
    max_batch_size: int | None = None
    """None: from the measured profile, see `registry.domain.pod`."""
    max_batch_wait_s: float = 0.0
    max_load_wait_s: float = 0.0
    """How long requests gather, under `auto`, before a load that evicts other models."""
    max_infer_s: float | None = None
    """None: the pod's own limit."""
    loading: str | None = None
    """The loading policy that the model's pool must have; None: any."""
    placement: str | None = None
    """The planner that the model's pool must have; OFF: the model is not placed. None: any."""
    profile: str | None = None
    """Name of a model in the namespace whose profile placement takes; None: its own."""
    canary_of: str | None = None
    """Name of a model in the namespace; `canary_percent` of its requests go to this model."""
    canary_percent: int = 0
    application: str | None = None
    """Name of the application in the namespace whose requests it can serve."""


STOPPED: Final = (
    "stopped by the annotation serving.kserve.io/stop: without it the model is served again"
)
"""How `ModelSpec.needs` of a stopped model begins."""


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A model as declared: where its weights are, how to read them, how to serve it."""

    name: ModelName
    storage_uri: str
    format: str = "huggingface"
    task: Task | None = None
    """None: the runtime reads it from the model's config.json."""
    protocol: str = "v2"
    pool: str = "default"
    policy: ModelPolicy = field(default_factory=ModelPolicy)
    annotations: tuple[tuple[str, str], ...] = ()
    labels: tuple[tuple[str, str], ...] = ()
    credentials: str = ""
    """Objects of its namespace with its storage credentials, which are never stored here:
    `serviceaccount/NAME`, `secret/NAME` or `storage-config/NAME/KEY`; empty: none."""
    needs: str = ""
    """What is missing for the model to be served, and the way out; empty: nothing."""
    logger: RequestLog | None = None
    """Where its requests and responses are sent as events; None: nowhere."""
    precision: Precision | None = None
    """None: the type in which the weights are stored."""
    base: str = ""
    """Name of the model in its namespace whose weights this adapter shares; empty: it is none."""
    transformer: str = ""
    """`host:port` of the transformer that its requests go through; empty: none."""
    explainer: str = ""
    """`host:port` of the explainer that serves `:explain`; empty: none."""
    options: TaskOptions = OWN
    engine: EngineChoice = EngineChoice.AUTO
    engine_args: tuple[str, ...] = ()
    """Arguments of vLLM, as it takes them."""
    rollout_percent: int | None = None
    """Of its requests, which a changed version gets at first (`rollouts`); None: all."""
    served_name: str = ""
    """A second name, by which it is called at its own Host and prefix; empty: none."""

    warnings: tuple[str, ...] = field(default=(), compare=False)
    """Fields and arguments as declared that mean nothing here."""

    generation: str = field(init=False, compare=False)
    """Hash of what determines weights and answers: URI, format, task, credentials, precision, base,
    options, engine with its arguments."""
    key: str = field(init=False, compare=False)
    """`namespace/name@generation`: identifies the model in tiers, claims and estimates."""

    def __post_init__(self) -> None:
        """Compute generation and key once: they are read several times per request."""
        parts = [self.storage_uri, self.format, self.task or ""]
        if self.credentials:
            parts.append(self.credentials)
        if self.precision:
            parts.append(f"precision={self.precision}")
        if self.base:
            parts.append(f"base={self.base}")
        if self.options != OWN:
            parts.append(repr(self.options))
        if self.engine is not EngineChoice.AUTO or self.engine_args:
            parts.append(repr((str(self.engine), self.engine_args)))
        generation = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:10]
        object.__setattr__(self, "generation", generation)
        object.__setattr__(self, "key", f"{self.name}@{generation}")

    @property
    def is_stopped(self) -> bool:
        """Whether its owner has it unloaded, and not served."""
        return self.needs.startswith(STOPPED)


def name_of_key(key: str) -> ModelName:
    """The name in a `namespace/name@generation` key."""
    return ModelName.parse(key.rpartition("@")[0])


PERMANENT_STATUSES: Final = frozenset({422, 501})
"""Of failures of a model's files, which this software cannot serve as they are (422), or not at all
(501)."""


UNREADABLE: Final = "Unreadable"
"""Reason of a model whose files no pod can read, or serve as they are."""


@dataclass(frozen=True, slots=True)
class LoadFailure:
    """Why a generation could not be loaded, and when the next attempt is allowed."""

    key: str
    reason: str
    """`Unreadable`, or one of KServe's `lastFailureInfo.reason` values, as `ModelLoadFailed`."""
    message: str
    attempts: int
    retry_at_s: float
    """Registry (Redis) time in seconds since the epoch."""
    http_status: int = 503
    """503 where a later load may succeed; 507 where memory or disk have no room; 422 and 501 where
    only other files help."""
    exceeds_budget: bool = False
    """The model is larger than all that it may have of a pod's memory, or of its node's disk."""

    @property
    def is_permanent(self) -> bool:
        """Whether a client gains nothing by sending its request again later."""
        return self.exceeds_budget or self.http_status in PERMANENT_STATUSES


@dataclass(frozen=True, slots=True)
class ModelRecord:
    """A declared model in the registry, with its last failure."""

    spec: ModelSpec
    previous: ModelSpec | None = None
    """The generation that serves until the one of `spec` is warm for the first time."""
    failure: LoadFailure | None = None

    @property
    def generations(self) -> tuple[ModelSpec, ...]:
        """The declared generation, and the previous one while that serves; none if stopped."""
        if self.spec.is_stopped:
            return ()
        return (self.spec,) if self.previous is None else (self.spec, self.previous)

    @property
    def serving(self) -> ModelSpec:
        """The generation that serves requests now."""
        return self.spec if self.previous is None or self.spec.is_stopped else self.previous


class LogMode(StrEnum):
    """What is sent, as KServe names it."""

    ALL = "all"
    REQUEST = "request"
    RESPONSE = "response"


@dataclass(frozen=True, slots=True)
class RequestLog:
    url: str
    """`http://HOST[:PORT][/PATH]`."""
    mode: LogMode = LogMode.ALL
    headers: tuple[str, ...] = ()
    """Headers of the request, in lower case, that go with each event."""
