import dataclasses
from enum import Enum
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from registry.domain.model import (
    Answers,
    LoadFailure,
    ModelName,
    ModelPolicy,
    ModelRecord,
    ModelSpec,
    Precision,
    Preload,
    RoutingPolicy,
    Scores,
    Task,
    TaskOptions,
    Tier,
)
from registry.domain.pod import Accelerator, AcceleratorKind, PodInfo, Profile, ProfilePoint
from registry.domain.records import (
    PodShape,
    WantedPods,
    decode,
    decode_profile,
    decode_record,
    decode_wanted,
    encode,
    encode_profile,
    encode_spec,
    encode_wanted,
)

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
SECONDS = st.floats(0, 1e9)
COUNTS = st.integers(-(2**53), 2**53)
PAIRS = st.lists(st.tuples(TEXT, TEXT), max_size=3).map(tuple)
NAMES = st.builds(ModelName, st.from_regex("[a-z]{1,5}", fullmatch=True), TEXT)
POLICIES = st.builds(
    ModelPolicy,
    routing=st.sampled_from(RoutingPolicy),
    target_ongoing_requests=COUNTS,
    queue_timeout_s=SECONDS,
    deadline_s=st.none() | SECONDS,
    max_copies=st.none() | COUNTS,
    keep_alive_s=st.none() | SECONDS,
    pin=st.booleans(),
    preload=st.sampled_from(Preload),
    preload_tier=st.sampled_from([Tier.DEVICE, Tier.HOST]),
    canary_of=st.none() | TEXT,
)
SPECS = st.builds(
    ModelSpec,
    name=NAMES,
    storage_uri=TEXT,
    format=TEXT,
    task=st.none() | st.sampled_from(Task),
    precision=st.none() | st.sampled_from(Precision),
    base=st.sampled_from(["", "llama"]),
    protocol=st.sampled_from(["v1", "v2"]),
    pool=TEXT,
    policy=POLICIES,
    annotations=PAIRS,
    labels=PAIRS,
    options=st.builds(
        TaskOptions,
        answers=st.sampled_from(Answers),
        scores=st.sampled_from(Scores),
        max_tokens=st.none() | COUNTS,
        keeps_case=st.booleans(),
        adds_special_tokens=st.booleans(),
    ),
    served_name=TEXT,
)
FAILURES = st.builds(
    LoadFailure,
    key=TEXT,
    reason=TEXT,
    message=TEXT,
    attempts=COUNTS,
    retry_at_s=SECONDS,
    http_status=st.sampled_from([503, 507]),
    exceeds_budget=st.booleans(),
)
PODS = st.builds(
    PodInfo,
    name=TEXT,
    address=TEXT,
    node=TEXT,
    device=TEXT,
    slots=COUNTS,
    memory_bytes=COUNTS,
    link_bytes_per_s=st.none() | SECONDS,
    process_id=COUNTS,
    accelerator=st.builds(Accelerator, uuid=TEXT, product=TEXT, memory_bytes=COUNTS, cores=COUNTS),
    share=SECONDS,
    uid=TEXT,
)


PROFILES = st.builds(
    Profile,
    key=TEXT,
    product=TEXT,
    points=st.lists(
        st.builds(ProfilePoint, rows=COUNTS, latency_s=SECONDS, memory_bytes=st.none() | COUNTS),
        max_size=3,
    ).map(tuple),
    limited_by=TEXT,
    source=TEXT,
)


@given(PROFILES)
def test_a_profile_survives_encoding(profile: Profile) -> None:
    assert decode_profile(encode_profile(profile)) == profile


@given(SPECS)
def test_a_specification_survives_encoding(spec: ModelSpec) -> None:
    back = decode(ModelSpec, encode_spec(spec))
    assert back == spec
    assert (back.generation, back.key) == (spec.generation, spec.key)
    assert encode_spec(back) == encode_spec(spec)


@given(SPECS, st.none() | SPECS, st.none() | FAILURES)
def test_a_record_survives_encoding(
    spec: ModelSpec, previous: ModelSpec | None, failure: LoadFailure | None
) -> None:
    back = decode_record(
        encode_spec(spec),
        encode_spec(previous) if previous else False,
        encode(failure) if failure else False,
    )
    assert back == ModelRecord(spec, previous, failure)


@given(PODS)
def test_a_pod_survives_encoding(pod: PodInfo) -> None:
    assert decode(PodInfo, encode(pod)) == pod


SPEC = ModelSpec(ModelName("a", "b"), "s3://bucket/x", task=Task.TEXT_EMBEDDING)


@pytest.mark.parametrize(
    ("wanted", "text"),
    [
        pytest.param(
            WantedPods((PodShape(2),), ("pod-1",)),
            '{"pods":2,"leaving":["pod-1"]}',
            id="one-shape-as-before",
        ),
        pytest.param(
            WantedPods((PodShape(2, AcceleratorKind("NVIDIA A100", 0.5)), PodShape(1))),
            '{"pods":3,"leaving":[],"shapes":['
            '{"count":2,"product":"NVIDIA A100","share":0.5,"batch_caps":[]},'
            '{"count":1,"product":"","share":1.0,"batch_caps":[]}]}',
            id="two-shapes-with-their-sum",
        ),
        pytest.param(
            WantedPods((PodShape(1, batch_caps=(("a/m@1", 8),)),)),
            '{"pods":1,"leaving":[],"shapes":['
            '{"count":1,"product":"","share":1.0,"batch_caps":[["a/m@1",8]]}]}',
            id="batch-caps",
        ),
    ],
)
def test_wanted_pods_survive_encoding(wanted: WantedPods, text: str) -> None:
    assert encode_wanted(wanted) == text
    assert decode_wanted(text) == wanted


def _of_newer_version(value: Any) -> Any:
    """The value as a newer version would write it: every object has one more field."""
    if isinstance(value, dict):
        return {
            **{key: _of_newer_version(item) for key, item in value.items()},
            "from_the_future": [1],
        }
    return value


def test_fields_of_a_newer_version_are_ignored() -> None:
    failure = LoadFailure("a/b@1", "ModelLoadFailed", "no", attempts=1, retry_at_s=2.0)
    pod = PodInfo("a", "b:1", "n", accelerator=Accelerator("GPU-1", "NVIDIA H200", 141, 132))
    profile = Profile("a/b@1", "cpu", (ProfilePoint(1, 0.5),))
    profile_text = _of_newer_version(orjson.loads(encode_profile(profile)))
    profile_text["points"] = [_of_newer_version(point) for point in profile_text["points"]]
    assert decode_profile(orjson.dumps(profile_text).decode()) == profile
    spec_text, failure_text, pod_text = (
        orjson.dumps(_of_newer_version(orjson.loads(text))).decode()
        for text in (encode_spec(SPEC), encode(failure), encode(pod))
    )
    assert decode_record(spec_text, spec_text, failure_text) == ModelRecord(SPEC, SPEC, failure)
    assert decode(PodInfo, pod_text) == pod
    stored = orjson.loads(pod_text)
    stored["accelerator"]["from_the_future"] = 1
    assert decode(PodInfo, orjson.dumps(stored).decode()) == pod


def test_fields_missing_from_an_older_version_get_defaults() -> None:
    stored = orjson.loads(encode_spec(SPEC))
    del stored["policy"]["max_batch_wait_s"]
    assert decode(ModelSpec, orjson.dumps(stored).decode()) == SPEC
    pod = decode(PodInfo, '{"name": "a", "address": "b:1", "node": "n", "device": "cuda:0"}')
    assert pod == PodInfo("a", "b:1", "n", "cuda:0")
    assert pod.kind == AcceleratorKind("", 1.0)


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(ModelPolicy)])
def test_every_field_of_the_policy_is_stored(field: str) -> None:
    assert field in orjson.loads(encode_spec(SPEC))["policy"]


def test_enums_are_decoded_as_enums() -> None:
    policy = decode(ModelSpec, encode_spec(SPEC)).policy
    for field in dataclasses.fields(ModelPolicy):
        default = getattr(ModelPolicy(), field.name)
        if isinstance(default, Enum) and field.name != "routing":  # may be of a plug-in
            assert type(getattr(policy, field.name)) is type(default)
