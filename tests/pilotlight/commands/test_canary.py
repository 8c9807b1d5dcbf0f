"""Canaries as an operator meets them: where they show, and how a trial ends."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from registry.domain.model import UNREADABLE, LoadFailure, ModelName, ModelRecord, Precision
from registry.redis.client import Registry
from tests import servers
from tests.pilotlight.conftest import SERVICE, Cli, write_yaml
from tests.registry.redis.clients import act


def _canary(name: str, of: str, percent: int, **more: str) -> str:
    annotations = {
        "pilotlight.io/canary-of": of,
        "pilotlight.io/canary-percent": f'"{percent}"',
        **more,
    }
    lines = "".join(f"\n    {key}: {value}" for key, value in annotations.items())
    named = SERVICE.format(name=name, folder=name)
    return named.replace(f"name: {name}\n", f"name: {name}\n  annotations:{lines}\n", 1)


def _records(url: str) -> dict[ModelName, ModelRecord]:
    async def read(registry: Registry) -> dict[ModelName, ModelRecord]:
        return dict((await registry.cluster()).models)

    return act(url, "default", read)


@pytest.fixture
def trial(verb: Cli, tmp_path: Path) -> Cli:
    """Runs verbs on a registry with `iris` and its canary `iris-v2`."""
    iris = SERVICE.format(name="iris", folder="iris").replace(
        "name: iris\n", "name: iris\n  annotations:\n    pilotlight.io/deadline: 3s\n", 1
    )
    canary = _canary("iris-v2", "iris", 10, **{"pilotlight.io/dtype": "bfloat16"})
    ran = verb("apply", "-f", write_yaml(tmp_path, a=iris, b=canary), "--no-check")
    assert "canary" not in ran.err
    return verb


def test_both_sides_of_a_canary_are_shown(trial: Cli) -> None:
    lines = trial("get", "models").out.splitlines()
    assert "TRAFFIC" in lines[0]
    assert "90 %, iris-v2 10 %" in lines[1]
    assert "10 % of iris" in lines[2]
    assert "traffic: 90 %, iris-v2 10 %" in trial("describe", "model", "iris").out
    assert "traffic: 10 % of iris" in trial("describe", "model", "iris-v2").out


@pytest.mark.parametrize("named", ["iris", "iris-v2"])
def test_promotion_gives_the_model_the_canarys_files_and_ends_the_trial(
    redis: servers.RedisServer, trial: Cli, named: str
) -> None:
    ran = trial("promote", named)
    assert ran.status == 0, ran.err
    [record] = _records(redis.url).values()
    assert str(record.spec.name) == "default/iris"
    assert record.spec.storage_uri == "s3://models/iris-v2"
    assert record.spec.precision is Precision.BFLOAT16
    assert dict(record.spec.annotations) == {
        "pilotlight.io/deadline": "3s",
        "pilotlight.io/dtype": "bfloat16",
    }
    assert record.spec.policy.deadline_s == 3
    assert record.spec.policy.canary_of is None
    assert "storageUri" in ran.err


def test_a_canary_whose_files_cannot_be_served_is_not_promoted(
    redis: servers.RedisServer, trial: Cli
) -> None:
    key = _records(redis.url)[ModelName("default", "iris-v2")].spec.key

    async def report(registry: Registry) -> None:
        failure = LoadFailure(key, UNREADABLE, "model.skops is cut short", 0, 0.0, 422)
        await registry.report_unreadable(failure)

    act(redis.url, "default", report)
    ran = trial("promote", "iris")
    assert ran.status == 1
    assert "iris-v2 is not promoted" in ran.err
    assert "model.skops is cut short" in ran.err
    kept = _records(redis.url)[ModelName("default", "iris")]
    assert kept.spec.storage_uri == "s3://models/iris"
    assert len(_records(redis.url)) == 2


@pytest.mark.parametrize("named", ["iris", "iris-v2"])
def test_rollback_deletes_the_canary_alone(
    redis: servers.RedisServer, trial: Cli, named: str
) -> None:
    ran = trial("rollback", named, "--json")
    assert ran.document == {"model": "default/iris", "deleted": ["default/iris-v2"]}
    [record] = _records(redis.url).values()
    assert record.spec.storage_uri == "s3://models/iris"


def test_one_of_several_canaries_must_be_named(trial: Cli, tmp_path: Path) -> None:
    other = write_yaml(tmp_path / "more", c=_canary("iris-v3", "iris", 95))
    ran = trial("apply", "-f", other, "--no-check")
    assert "90 % is what other canaries of default/iris leave" in ran.err
    ran = trial("promote", "iris")
    assert ran.status == 2
    assert "iris-v2, iris-v3" in ran.err
    assert trial("promote", "iris-v3").status == 0
    ran = trial("rollback", "iris")
    assert "iris-v2" in ran.out


def test_a_model_without_canary_says_how_to_make_one(trial: Cli) -> None:
    trial("rollback", "iris")
    for verb in ("promote", "rollback"):
        ran = trial(verb, "iris")
        assert ran.status == 1
        assert "pilotlight.io/canary-of" in ran.err


@pytest.mark.parametrize("words", [("apply",), ("apply", "--dry-run")])
def test_a_canary_of_an_unknown_model_is_warned_of(
    trial: Cli, tmp_path: Path, words: tuple[str, ...]
) -> None:
    file = write_yaml(tmp_path / "more", c=_canary("lost", "irsi", 10))
    ran = trial(*words, "-f", file)
    assert ran.status == 0
    assert "default/irsi does not exist; did you mean iris?" in ran.err
    if words == ("apply",):
        assert "0 % of irsi (default/irsi does not exist" in trial("get", "models").out


def test_models_show_their_age_and_url(trial: Cli) -> None:
    [model] = trial("get", "models", "iris", "-o", "json").document
    created = datetime.fromisoformat(model["created"])
    assert timedelta(0) <= datetime.now(UTC) - created < timedelta(seconds=60)
    assert model["url"].endswith("/serving/default/iris")
    lines = trial("get", "models", "-o", "wide").out.splitlines()
    assert "AGE" in lines[0]
    assert "/serving/default/iris" in lines[1]


def test_a_changed_model_keeps_its_age_and_a_new_one_begins(trial: Cli, tmp_path: Path) -> None:
    def created(name: str) -> str:
        [model] = trial("get", "models", name, "--json").document
        return str(model["created"])

    before = created("iris")
    changed = SERVICE.format(name="iris", folder="elsewhere")
    trial("apply", "-f", write_yaml(tmp_path / "more", c=changed), "--no-check")
    assert created("iris") == before
    trial("delete", "iris")
    trial("apply", "-f", str(tmp_path / "more"), "--no-check")
    assert created("iris") > created("iris-v2")


def _version(folder: str, percent: int | None = None) -> str:
    share = "" if percent is None else f"    canaryTrafficPercent: {percent}\n"
    return SERVICE.format(name="iris", folder=folder).rstrip() + f"\n{share}"


def test_a_rollout_by_kserves_field_is_a_canary_until_it_ends(
    redis: servers.RedisServer, verb: Cli, tmp_path: Path
) -> None:
    def apply(folder: str, percent: int | None = None, *flags: str) -> str:
        path = write_yaml(tmp_path / "yaml", a=_version(folder, percent))
        return verb("apply", "-f", path, *flags).out.strip().rpartition("/")[2]

    def uris() -> dict[str, str]:
        return {key.name: each.spec.storage_uri for key, each in _records(redis.url).items()}

    assert apply("one", 10) == "iris created"
    assert uris() == {"iris": "s3://models/one"}
    assert apply("two", 10, "--dry-run") == "iris configured (dry run)"
    assert apply("two", 10) == "iris configured"
    assert apply("two", 10) == "iris unchanged"
    assert uris() == {"iris": "s3://models/one", "iris-canary": "s3://models/two"}
    assert "90 %, iris-canary 10 %" in verb("get", "models").out
    assert apply("two", 100) == "iris configured"
    assert uris() == {"iris": "s3://models/two"}
    apply("three", 0)
    assert uris() == {"iris": "s3://models/two", "iris-canary": "s3://models/three"}
    assert verb("delete", "iris").status == 0
    assert uris() == {}
