"""`profile --export` and `--import` with a real registry, without running pods."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pilotlight.errors import InvalidInput
from pilotlight.profile_files import parse_profiles, profiles_document
from registry.domain.model import ModelName, ModelSpec
from registry.domain.pod import IMPORTED, PairFactor, Profile, ProfilePoint, ShareFactor
from registry.domain.records import decode_profile, encode_profile
from registry.redis.client import Registry
from tests import servers
from tests.pilotlight.conftest import SERVICE, Cli, write_yaml
from tests.registry.redis.clients import act
from tests.research.placement.igniter_cases import igniter_document, measured

MEASURED: Any = {
    "shares": (ShareFactor(25.0, 1, 3.5), ShareFactor(50.0, 1, 1.75)),
    "pairs": (PairFactor("default/other", 1.25),),
}
SPEC = ModelSpec(ModelName("default", "m"), "s3://bucket/m")
POINTS = (ProfilePoint(1, 0.01, 1 << 20), ProfilePoint(2, 0.0125))
CPU = Profile(SPEC.key, "AMD EPYC 9V74", POINTS, "size", "in-service")
GPU = Profile(SPEC.key, "NVIDIA H200", POINTS, "throughput")


def stored(url: str, name: str) -> list[Profile]:
    async def read(registry: Registry) -> list[Profile]:
        state = await registry.cluster()
        return state.profiles_of(state.models[ModelName("default", name)].serving.key)

    return act(url, "default", read)


def test_profiles_survive_export_and_import(
    verb: Cli, redis: servers.RedisServer, tmp_path: Path
) -> None:
    verb("apply", "-f", write_yaml(tmp_path / "y", m=SERVICE.format(name="m", folder="x")))
    none = verb("profile", "m", "--export", "-")
    assert none.status == 1
    assert "has no profile" in none.err

    hand_written = {
        "profiles": [
            {"accelerator": "NVIDIA H200", "points": [{"rows": 1, "latency_s": 0.01}]},
            {
                "accelerator": "NVIDIA L4",
                "source": "measured",
                "limited_by": "memory",
                "points": [{"rows": 1, "latency_s": 0.1, "memory_bytes": 5}],
            },
        ]
    }
    file = tmp_path / "profiles.json"
    file.write_text(json.dumps(hand_written))
    verb("profile", "m", "--import", str(file))
    before = stored(redis.url, "m")
    assert [(each.product, each.source, each.limited_by) for each in before] == [
        ("NVIDIA H200", "imported", ""),
        ("NVIDIA L4", "measured", "memory"),
    ]

    exported = verb("profile", "m", "--export", "-").document
    assert exported["model"] == "default/m"
    assert exported["profiles"][0]["points"] == [
        {"rows": 1, "latency_s": 0.01, "memory_bytes": None}
    ]
    verb("profile", "m", "--export", str(file))
    assert json.loads(file.read_text()) == exported
    verb("delete", "m")
    verb("apply", "-f", str(tmp_path / "y"))
    assert stored(redis.url, "m") == []
    shown = verb("profile", "m", "--import", str(file), "--json").document
    assert [each["device"] for each in shown["profiles"]] == ["NVIDIA H200", "NVIDIA L4"]
    assert stored(redis.url, "m") == before


def test_a_bad_file_changes_nothing(verb: Cli, redis: servers.RedisServer, tmp_path: Path) -> None:
    verb("apply", "-f", write_yaml(tmp_path / "y", m=SERVICE.format(name="m", folder="x")))
    file = tmp_path / "profiles.json"
    good = {"accelerator": "NVIDIA H200", "points": [{"rows": 1, "latency_s": 0.01}]}
    file.write_text(json.dumps({"profiles": [good, {"accelerator": "NVIDIA L4"}]}))
    refused = verb("profile", "m", "--import", str(file))
    assert refused.status == 2
    assert "profiles[1].points: Field required" in refused.err
    assert stored(redis.url, "m") == []
    absent = verb("profile", "m", "--import", str(tmp_path / "absent"))
    assert absent.status == 2
    assert "absent cannot be read" in absent.err
    unknown = verb("profile", "nobody", "--import", str(file))
    assert "there are: default/m" in unknown.err
    both = verb("profile", "m", "--import", "-", "--export", "-")
    assert "not both" in both.err


def test_a_file_holds_the_profiles_whole() -> None:
    text = json.dumps(profiles_document(SPEC, [CPU, GPU]))
    assert parse_profiles(text, SPEC, file="f") == [CPU, GPU]


def test_a_profile_without_a_source_is_imported() -> None:
    document = profiles_document(SPEC, [GPU])
    del document["profiles"][0]["source"]
    [found] = parse_profiles(json.dumps(document), SPEC, file="f")
    assert found.source == IMPORTED


def changed(path: str, value: Any) -> str:
    """The document of `GPU` with another value at a path such as `profiles.0.source`."""
    document: Any = profiles_document(SPEC, [GPU])
    *parents, last = [int(each) if each.isdecimal() else each for each in path.split(".")]
    inner = document
    for each in parents:
        inner = inner[each]
    inner[last] = value
    return json.dumps(document)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("pilotlight_profiles", 2, "f: pilotlight_profiles: Input should be 1, was 2"),
        ("generation", "old", f"f: generation must be {SPEC.generation}, that of default/m"),
        ("profiles", {}, "f: profiles: Input should be a valid list, was {}"),
        ("profiles", [], "f: profiles: List should have at least 1 item"),
        ("extra", 1, "f: extra: Extra inputs are not permitted, was 1"),
        ("profiles.0", 3, "f: profiles[0]: Input should be a valid dictionary"),
        ("profiles.0.accelerator", " ", "f: profiles[0].accelerator: String should match"),
        ("profiles.0.accelerator", "x" * 201, "at most 200 characters"),
        ("profiles.0.source", 3, "f: profiles[0].source: Input should be a valid string"),
        ("profiles.0.limited_by", "x", "f: profiles[0].limited_by: Input should be '', 'through"),
        (
            "profiles.0.extra",
            {},
            "f: profiles[0].extra is no field of a profile, and of no plug-in",
        ),
        ("profiles.0.points.0.rows", True, "points[0].rows: Input should be a valid integer"),
        ("profiles.0.points.0.rows", 10**6 + 1, "less than or equal to 1000000"),
        ("profiles.0.points.1.rows", 1, "points must ascend by rows, each once, was [1, 1]"),
        ("profiles.0.points.0.latency_s", -1, "latency_s: Input should be greater than or equal"),
        ("profiles.0.points.0.latency_s", "5 ms", 'should be a valid number, was "5 ms"'),
        ("profiles.0.points.0.latency_s", float("nan"), "f: not JSON: "),
        ("profiles.0.points.0.latency_s", 1e-320, "greater than or equal to 0.000000001, was"),
        ("profiles.0.points.0.latency_s", 10**400, "f: not JSON: "),
        ("profiles.0.points.0.memory_bytes", 1 << 70, "memory_bytes: Input should be a valid int"),
        ("profiles.0.points.0.occupancy_pct", 101, "should be less than or equal to 100, was 101"),
        ("profiles.0.accelerator", "\ud800", "f: not JSON: "),
        ("profiles.0.points.0.memory_bytes", -1, "memory_bytes: Input should be greater than or"),
        ("profiles.0.points.0.latency_ms", 5, "latency_ms: Extra inputs are not permitted, was 5"),
    ],
)
def test_says_what_is_wrong_in_a_file(path: str, value: Any, message: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        parse_profiles(changed(path, value), SPEC, file="f")
    assert message in str(refused.value)


def test_names_all_mistakes_and_refuses_other_formats() -> None:
    text = changed("profiles.0.points.0", {"rows": 0, "latency_s": None})
    with pytest.raises(InvalidInput) as refused:
        parse_profiles(text, SPEC, file="f")
    assert len(refused.value.problems) == 2
    with pytest.raises(InvalidInput, match="not JSON"):
        parse_profiles("rows,latency\n1,2", SPEC, file="f")
    with pytest.raises(InvalidInput, match="not JSON"):
        parse_profiles("[" * 100_000, SPEC, file="f")
    twice = json.dumps(profiles_document(SPEC, [GPU, GPU]))
    with pytest.raises(InvalidInput, match="one profile per accelerator"):
        parse_profiles(twice, SPEC, file="f")


def test_files_of_earlier_versions_with_sizes_and_throughputs_are_read() -> None:
    document = profiles_document(SPEC, [GPU])
    document["weights_bytes"] = 242041896
    document["profiles"][0]["accelerator_memory_bytes"] = 150754820096
    document["profiles"][0]["points"][0]["rows_per_s"] = 100.0
    assert parse_profiles(json.dumps(document), SPEC, file="f") == [GPU]


def test_slowdowns_by_share_and_neighbour_are_exported_and_stored() -> None:
    profile = Profile(SPEC.key, "NVIDIA H200", POINTS, **MEASURED)
    text = json.dumps(profiles_document(SPEC, [profile]))
    assert parse_profiles(text, SPEC, file="f") == [profile]
    assert decode_profile(encode_profile(profile)) == profile
    assert "shares" not in json.dumps(profiles_document(SPEC, [GPU]))


def _with_fit(change: dict[str, Any]) -> str:
    """The document of `GPU` with iGniter's coefficients, changed."""
    fit = measured(igniter_document(), "cpu").fits[0].fits["igniter"]
    document = profiles_document(SPEC, [replace(GPU, fits={"igniter": {**fit, **change}})])
    return json.dumps(document)


def test_coefficients_of_a_plug_in_are_exported_and_stored() -> None:
    [profile] = parse_profiles(_with_fit({}), SPEC, file="f")
    assert profile.fits["igniter"]["hardware"]["share_step_pct"] == 2.5
    assert decode_profile(encode_profile(profile)) == profile


@pytest.mark.parametrize(
    "change", [{"model": {}}, {"source": 3}, {"hardware": None}, {"model": {"k": [1, 2]}}]
)
def test_coefficients_that_lack_a_number_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match=r"profiles\[0\].igniter must hold all coefficients"):
        parse_profiles(_with_fit(change), SPEC, file="f")


def test_all_mistakes_in_slowdowns_are_refused_together() -> None:
    document = profiles_document(SPEC, [Profile(SPEC.key, "NVIDIA H200", POINTS, **MEASURED)])
    [stored] = document["profiles"]
    stored["shares"] = [{"share_pct": 0, "rows": 1, "factor": float(2)}, {"share_pct": 50, "x": 1}]
    stored["pairs"] = [{"neighbour": "default/other", "factor": 0.5}]
    with pytest.raises(InvalidInput) as refused:
        parse_profiles(json.dumps(document), SPEC, file="f")
    text = str(refused.value)
    for place in (
        "shares[0].share_pct",
        "shares[1].x: Extra inputs",
        "shares[1].rows",
        "shares[1].factor",
        "pairs[0].factor: Input should be greater than or equal to 1",
    ):
        assert f"profiles[0].{place}" in text
