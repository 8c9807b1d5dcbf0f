"""Models, pods, profiles and autoscaler actions as JSON in Redis, one field per attribute.

Fields that a newer version wrote are ignored.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, fields
from typing import Any, Final

import orjson

from registry.domain.accelerator import Accelerator, AcceleratorKind, GpuReading
from registry.domain.action_log import ActionRecord, PodShape, WantedPods
from registry.domain.model import (
    LoadFailure,
    ModelName,
    ModelPolicy,
    ModelRecord,
    ModelSpec,
    Precision,
    Preload,
    Task,
    Tier,
    decode_request_log,
)
from registry.domain.pod import CopyReport, PodInfo
from registry.domain.profile import PLACEMENT_FIELDS, PairFactor, Profile, ProfilePoint, ShareFactor
from registry.domain.task_options import Answers, Scores, TaskOptions

MAX_STEP_MODELS: Final = 256
"""Models declared in one step. Redis serves no other client meanwhile: 10,000 at once took 0.3 s of
an idle core, and on a busy one longer than the timeout of other calls."""
MAX_STEP_BYTES: Final = 1 << 18
"""Bytes of specifications in one step; each step is also one message to every watched copy."""


def encode(value: LoadFailure | PodInfo) -> str:
    return orjson.dumps(value).decode()


def encode_spec(spec: ModelSpec) -> str:
    document = asdict(spec) | {"name": spec.name._asdict()}
    return orjson.dumps(document, option=orjson.OPT_SORT_KEYS).decode()


def decode_spec(text: str) -> ModelSpec:
    stored: dict[str, Any] = orjson.loads(text)
    name = stored["name"]
    policy = known(ModelPolicy, stored["policy"])
    policy["preload"] = Preload(policy["preload"])
    policy["preload_tier"] = Tier(policy["preload_tier"])
    return ModelSpec(
        name=ModelName(name["namespace"], name["name"]),
        storage_uri=stored["storage_uri"],
        format=stored["format"],
        task=Task(stored["task"]) if stored["task"] else None,
        protocol=stored["protocol"],
        pool=stored["pool"],
        policy=ModelPolicy(**policy),
        annotations=_pairs(stored["annotations"]),
        labels=_pairs(stored["labels"]),
        credentials=stored.get("credentials", ""),
        needs=stored.get("needs", ""),
        logger=decode_request_log(stored.get("logger")),
        precision=Precision(stored["precision"]) if stored.get("precision") else None,
        base=stored.get("base", ""),
        transformer=stored.get("transformer", ""),
        explainer=stored.get("explainer", ""),
        options=decode_options(stored.get("options") or {}),
        served_name=stored.get("served_name", ""),
        warnings=tuple(stored.get("warnings", ())),
    )


def decode_options(stored: dict[str, Any]) -> TaskOptions:
    values = known(TaskOptions, stored)
    if "answers" in values:
        values["answers"] = Answers(values["answers"])
    if "scores" in values:
        values["scores"] = Scores(values["scores"])
    return TaskOptions(**values)


def known(kind: type[Any], values: dict[str, Any]) -> dict[str, Any]:
    """The values of a dataclass's fields, without those of a newer version."""
    names = {field.name for field in fields(kind)}
    return {name: value for name, value in values.items() if name in names}


def _pairs(items: list[list[str]]) -> tuple[tuple[str, str], ...]:
    return tuple((name, value) for name, value in items)


def decode_record(spec: str, previous: str | bool, failure: str | bool) -> ModelRecord:
    """A model's record from its three stored parts; a missing part is False."""
    return ModelRecord(
        spec=decode_spec(spec),
        previous=decode_spec(previous) if isinstance(previous, str) else None,
        failure=decode_failure(failure) if isinstance(failure, str) else None,
    )


def decode_failure(text: str) -> LoadFailure:
    return LoadFailure(**known(LoadFailure, orjson.loads(text)))


def decode_pod(text: str) -> PodInfo:
    stored: dict[str, Any] = known(PodInfo, orjson.loads(text))
    accelerator = known(Accelerator, stored.pop("accelerator", {}))
    return PodInfo(accelerator=Accelerator(**accelerator), **stored)


def encode_copies(copies: Mapping[str, CopyReport]) -> str:
    return orjson.dumps(dict(copies), option=orjson.OPT_SORT_KEYS).decode()


def decode_copies(text: str) -> dict[str, CopyReport]:
    stored: dict[str, dict[str, Any]] = orjson.loads(text)
    return {key: CopyReport(**known(CopyReport, each)) for key, each in stored.items()}


def encode_gpu(reading: GpuReading | None) -> str:
    """Empty without one."""
    return orjson.dumps(reading).decode() if reading is not None else ""


def decode_gpu(text: str) -> GpuReading:
    return GpuReading(**known(GpuReading, orjson.loads(text)))


def profile_document(profile: Profile) -> dict[str, Any]:
    """A profile as in JSON, in Redis and in responses: `device` is the accelerator's product."""
    document = asdict(profile)
    for point in document["points"]:
        for name in PLACEMENT_FIELDS:
            if point[name] is None:
                del point[name]
    for name in ("shares", "pairs"):
        if not document[name]:
            del document[name]
    document |= document.pop("fits")
    return {"device" if key == "product" else key: value for key, value in document.items()}


def encode_profile(profile: Profile) -> str:
    return orjson.dumps(profile_document(profile)).decode()


def decode_profile(text: str) -> Profile:
    document: dict[str, Any] = orjson.loads(text)
    stored = known(Profile, {**document, "product": document["device"]})
    points = tuple(ProfilePoint(**known(ProfilePoint, point)) for point in stored.pop("points"))
    shares = tuple(ShareFactor(**known(ShareFactor, each)) for each in stored.pop("shares", ()))
    pairs = tuple(PairFactor(**known(PairFactor, each)) for each in stored.pop("pairs", ()))
    fits = {name: each for name, each in document.items() if isinstance(each, dict)}
    return Profile(points=points, shares=shares, pairs=pairs, fits=fits, **stored)


def encode_wanted(wanted: WantedPods) -> str:
    """With the number of all pods, which older versions read; alone if it is the only shape."""
    document: dict[str, Any] = {"pods": wanted.pods, "leaving": wanted.leaving}
    if wanted.shapes != (PodShape(wanted.pods),):
        document["shapes"] = [
            {"count": shape.count, **shape.kind._asdict(), "batch_caps": shape.batch_caps}
            for shape in wanted.shapes
        ]
    return orjson.dumps(document).decode()


def decode_wanted(text: str) -> WantedPods:
    stored = orjson.loads(text)
    shapes = stored.get("shapes", [{"count": stored["pods"]}])
    return WantedPods(tuple(_decode_shape(each) for each in shapes), tuple(stored["leaving"]))


def _decode_shape(stored: dict[str, Any]) -> PodShape:
    kind = AcceleratorKind(stored.get("product", ""), stored.get("share", 1.0))
    caps = tuple((key, rows) for key, rows in stored.get("batch_caps", ()))
    return PodShape(stored["count"], kind, caps)


def action_document(record: ActionRecord) -> dict[str, Any]:
    """An action as in JSON, in Redis and in the output of the command line."""
    return {"words" if key == "detail" else key: value for key, value in asdict(record).items()}


def encode_action(record: ActionRecord) -> str:
    return orjson.dumps(action_document(record)).decode()


def decode_action(text: str) -> ActionRecord:
    stored: dict[str, Any] = orjson.loads(text)
    stored["detail"] = stored.pop("words")
    return ActionRecord(**known(ActionRecord, stored))


def declaration_steps(specs: Iterable[ModelSpec]) -> Iterator[list[tuple[str, str, str]]]:
    """Many models as arguments of the operation `put`, in steps within the limits above.

    Between steps Redis serves other clients.
    """
    step: list[tuple[str, str, str]] = []
    size = 0
    for spec in specs:
        text = encode_spec(spec)
        if step and (len(step) == MAX_STEP_MODELS or size + len(text) > MAX_STEP_BYTES):
            yield step
            step, size = [], 0
        step.append((str(spec.name), spec.key, text))
        size += len(text)
    if step:
        yield step
