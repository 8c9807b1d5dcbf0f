import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from registry.domain.model import (
    Answers,
    ModelPolicy,
    PlacementName,
    Precision,
    Preload,
    RoutingPolicy,
    Scores,
    Task,
    Tier,
)
from registry.inference_service.annotations import KEYS, PREFIX, parse_annotations

VALID: list[tuple[str, str, object]] = [
    ("policy", "colocation-queueing", RoutingPolicy.COLOCATION_QUEUEING),
    ("target-ongoing-requests", "1", 1),
    ("target-ongoing-requests", "10000", 10_000),
    ("queue-depth", "0", 0),
    ("queue-timeout", "150ms", 0.15),
    ("deadline", "1h30m", 5400.0),
    ("priority", "-1000", -1000),
    ("min-copies", "0", 0),
    ("max-copies", "3", 3),
    ("keep-alive", "0", 0.0),
    ("keep-alive", "720h", 30 * 86400.0),
    ("pin", "true", True),
    ("pin", "false", False),
    ("preload", "eager", Preload.EAGER),
    ("preload-tier", "host", Tier.HOST),
    ("max-batch-size", "4096", 4096),
    ("max-batch-wait", "5ms", 0.005),
    ("max-load-wait", "300ms", 0.3),
    ("max-infer-time", "2m", 120.0),
    ("loading", "round-robin-renewed", "round-robin-renewed"),
    ("placement", "wao-milp", "wao-milp"),
    ("placement", "off", PlacementName.OFF),
    ("profile", "translate", "translate"),
    ("canary-of", "translate", "translate"),
    ("canary-percent", "0", 0),
]

INTEGER = ["", "x", "1.5", "+1", "01", "1_0", "1e2", "true", "9" * 5000]
DURATION = ["", "x", "5", "-3s", "721h", "inf", "9" * 400 + "s"]
LABEL = ["", "A", "a_b", "-a", "a-", "ä", "a b", "a" * 64]
INVALID: dict[str, list[str]] = {
    "pool": LABEL,
    "task": ["", "embedding", "Text-Embedding"],
    "dtype": ["", "bf16", "float16", "Float32", "int8"],
    "base-model": LABEL,
    "engine": ["", "VLLM", "sglang"],
    "policy": ["", "fastest", "AUTO", "auto "],
    "target-ongoing-requests": [*INTEGER, "0", "-3", "10001"],
    "queue-depth": [*INTEGER, "-1", "1000001"],
    "queue-timeout": [*DURATION, "0", "0s"],
    "deadline": [*DURATION, "0", "0ms"],
    "priority": [*INTEGER, "-1001", "1001"],
    "min-copies": [*INTEGER, "-1", "10001"],
    "max-copies": [*INTEGER, "0", "10001"],
    "keep-alive": DURATION,
    "pin": ["", "yes", "1", "True"],
    "preload": ["", "on", "Eager"],
    "preload-tier": ["", "disk", "remote", "gpu"],
    "max-batch-size": [*INTEGER, "0", "4097"],
    "max-batch-wait": DURATION,
    "max-load-wait": DURATION,
    "max-infer-time": [*DURATION, "0s"],
    "loading": ["", "lru", "Predictive", "none"],
    "placement": ["", "milp", "Usher", "none"],
    "profile": LABEL,
    "canary-of": LABEL,
    "application": LABEL,
    "canary-percent": [*INTEGER, "-1", "101", "20%"],
    "answers": ["", "KServe", "v2"],
    "scores": ["", "top", "All"],
}


@pytest.mark.parametrize(("key", "text", "value"), VALID)
def test_a_valid_value_sets_its_field(key: str, text: str, value: object) -> None:
    parsed = parse_annotations({PREFIX + key: text})
    assert parsed.problems == ()
    assert getattr(parsed.policy, KEYS[key].field) == value


def test_pool_and_task_are_not_part_of_the_policy() -> None:
    parsed = parse_annotations({PREFIX + "pool": "big", PREFIX + "task": "text-embedding"})
    assert (parsed.pool, parsed.task, parsed.policy) == ("big", Task.TEXT_EMBEDDING, ModelPolicy())


def test_dtype_is_not_part_of_the_policy() -> None:
    for text, value in (("bfloat16", Precision.BFLOAT16), ("auto", Precision.AUTO)):
        parsed = parse_annotations({PREFIX + "dtype": text})
        assert (parsed.precision, parsed.policy, parsed.problems) == (value, ModelPolicy(), ())


def test_forms_of_answers_are_not_part_of_the_policy() -> None:
    parsed = parse_annotations({PREFIX + "answers": "kserve", PREFIX + "scores": "all"})
    assert (parsed.answers, parsed.scores) == (Answers.KSERVE, Scores.ALL)
    assert (parsed.policy, parsed.problems) == (ModelPolicy(), ())


def test_an_adapter_has_a_base_and_its_type() -> None:
    adapter = {PREFIX + "base-model": "llama"}
    parsed = parse_annotations(adapter)
    assert (parsed.base, parsed.policy, parsed.problems) == ("llama", ModelPolicy(), ())
    (problem,) = parse_annotations(adapter | {PREFIX + "dtype": "bfloat16"}).problems
    assert "must be absent beside pilotlight.io/base-model" in problem


def test_without_annotations_the_defaults_apply() -> None:
    parsed = parse_annotations({"example.com/policy": "whatever", "sidecar": "yes"})
    assert (parsed.pool, parsed.task, parsed.policy) == ("default", None, ModelPolicy())
    assert parsed.problems == ()


def test_every_key_has_invalid_values_to_test() -> None:
    assert INVALID.keys() == KEYS.keys()


@pytest.mark.parametrize(
    ("key", "text"), [(key, text) for key, texts in INVALID.items() for text in texts]
)
def test_an_invalid_value_is_reported_with_what_is_allowed(key: str, text: str) -> None:
    (problem,) = parse_annotations({PREFIX + key: text}).problems
    assert problem.startswith(f"metadata.annotations[{PREFIX}{key}] must be ")
    assert problem.endswith(f", was {text!r}")


def test_the_message_has_the_value_and_what_is_allowed() -> None:
    (problem,) = parse_annotations({PREFIX + "target-ongoing-requests": "-3"}).problems
    assert problem == (
        "metadata.annotations[pilotlight.io/target-ongoing-requests] must be "
        "a whole number from 1 to 10000, was '-3'"
    )


def test_all_mistakes_are_reported_together() -> None:
    parsed = parse_annotations(
        {PREFIX + "policy": "fastest", PREFIX + "pin": "maybe", PREFIX + "quue-depth": "1"}
    )
    assert len(parsed.problems) == 3
    assert parsed.policy == ModelPolicy()


@pytest.mark.parametrize(
    ("key", "hint"),
    [
        pytest.param("target-ongoing-request", "target-ongoing-requests", id="letter-missing"),
        pytest.param("Policy", "policy", id="capital"),
        pytest.param("max-batchsize", "max-batch-size", id="dash-missing"),
    ],
)
def test_an_unknown_key_comes_with_a_hint(key: str, hint: str) -> None:
    (problem,) = parse_annotations({PREFIX + key: "1"}).problems
    assert f"did you mean {PREFIX}{hint}?" in problem


def test_an_unknown_key_without_a_similar_one_lists_the_known_keys() -> None:
    (problem,) = parse_annotations({PREFIX + "zzzzzzzzzzzzzzzzzzzzzzzzzzzz": "1"}).problems
    assert "did you mean" not in problem
    assert all(key in problem for key in KEYS)


def test_thousands_of_unknown_keys_are_read_soon_and_told_briefly() -> None:
    began_s = time.thread_time()
    problems = parse_annotations({f"{PREFIX}a{number}": "" for number in range(15_000)}).problems
    assert time.thread_time() - began_s < 1.0  # not a search for near names in each
    assert len(problems) < 20
    assert f"more annotations {PREFIX}* are no known keys" in problems[-1]


@pytest.mark.parametrize("key", ["placements", "profiles"])
def test_keys_that_nothing_reads_are_refused(key: str) -> None:
    (problem,) = parse_annotations({PREFIX + key: "a"}).problems
    assert f"metadata.annotations[{PREFIX}{key}] is not a known key" in problem


def test_min_copies_above_max_copies_is_a_mistake() -> None:
    parsed = parse_annotations({PREFIX + "min-copies": "3", PREFIX + "max-copies": "2"})
    assert parsed.problems == (
        "metadata.annotations[pilotlight.io/min-copies] must be at most max-copies, "
        "was 3 with max-copies 2",
    )


def test_canary_percent_needs_canary_of() -> None:
    parsed = parse_annotations({PREFIX + "canary-percent": "20"})
    assert parsed.problems == (
        "metadata.annotations[pilotlight.io/canary-percent] needs pilotlight.io/canary-of, "
        "which names the model of whose requests it takes a share",
    )
    both = {PREFIX + "canary-percent": "20", PREFIX + "canary-of": "translate"}
    policy = parse_annotations(both).policy
    assert (policy.canary_of, policy.canary_percent) == ("translate", 20)


@pytest.mark.slow
@given(st.dictionaries(st.sampled_from([PREFIX + key for key in KEYS]), st.text(max_size=12)))
def test_any_text_is_parsed_or_reported(annotations: dict[str, str]) -> None:
    parsed = parse_annotations(annotations)
    assert len(parsed.problems) <= len(annotations) + 1
    assert not parsed.problems or parsed.policy == ModelPolicy()
