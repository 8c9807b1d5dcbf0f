"""`apply` and `delete` with a real registry, without pods."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import httpx
import pytest

from pilotlight import output
from registry.redis.autoscaler_log import AutoscalerLog
from registry.redis.client import Registry
from tests.gateway.gateway_harness import running_pods
from tests.pilotlight.conftest import SAMPLES, SERVICE, write_yaml

if TYPE_CHECKING:
    from pathlib import Path

    from tests import servers
    from tests.pilotlight.conftest import Cli

TWO_MISTAKES = """
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata:
  name: wrong
  annotations:
    pilotlight.io/target-ongoing-requests: "-3"
    pilotlight.io/polcy: auto
spec:
  predictor:
    model:
      modelFormat: {name: huggingface}
      storageUri: s3://models/t5-small
"""


def _models(cli: Cli, redis: servers.RedisServer) -> list[str]:
    shown = cli("get", "models", "--json", "--redis-url", redis.url)
    return [each["name"] for each in shown.document]


def test_prints_outcomes_like_kubectl(cli: Cli, redis: servers.RedisServer, tmp_path: Path) -> None:
    path = write_yaml(
        tmp_path / "yaml",
        a=SERVICE.format(name="a", folder="one"),
        b=SERVICE.format(name="b", folder="one"),
    )
    first = cli("apply", "-f", path, "--redis-url", redis.url)
    assert first.status == 0
    assert first.out.splitlines() == [
        "inferenceservice.serving.kserve.io/a created",
        "inferenceservice.serving.kserve.io/b created",
    ]
    write_yaml(tmp_path / "yaml", b=SERVICE.format(name="b", folder="two"))
    second = cli("apply", "-f", path, "--redis-url", redis.url, "--json")
    assert [(each["name"], each["outcome"]) for each in second.document] == [
        ("a", "unchanged"),
        ("b", "configured"),
    ]


def test_a_dry_run_prints_what_would_change_and_changes_nothing(
    cli: Cli, redis: servers.RedisServer, tmp_path: Path
) -> None:
    path = write_yaml(tmp_path / "yaml", a=SERVICE.format(name="a", folder="one"))
    at = ("--redis-url", redis.url)
    dry = cli("apply", "-f", path, "--dry-run", *at)
    assert dry.out == "inferenceservice.serving.kserve.io/a created (dry run)\n"
    assert _models(cli, redis) == []
    cli("apply", "-f", path, *at)
    assert "unchanged (dry run)" in cli("apply", "-f", path, "--dry-run", *at).out
    write_yaml(tmp_path / "yaml", a=SERVICE.format(name="a", folder="two"))
    assert "configured (dry run)" in cli("apply", "-f", path, "--dry-run", *at).out
    assert "configured" in cli("apply", "-f", path, *at).out


def test_reports_all_mistakes_and_applies_nothing(
    cli: Cli, redis: servers.RedisServer, tmp_path: Path
) -> None:
    path = write_yaml(
        tmp_path / "yaml",
        a_good=SERVICE.format(name="a", folder="one"),
        broken="kind: [",
        wrong_kind="apiVersion: v1\nkind: Pod\nmetadata: {name: x}\n",
        wrong=TWO_MISTAKES,
    )
    ran = cli("apply", "-f", path, "-f", "absent.yaml", "--redis-url", redis.url)
    assert ran.status == 2
    assert ran.out == ""
    for expected in (
        "broken.yaml",
        "absent.yaml",
        "'Pod'",
        "wrong.yaml: InferenceService default/wrong",
        "'-3'",
        "pilotlight.io/polcy",
    ):
        assert expected in ran.err
    assert _models(cli, redis) == []


def test_mistakes_are_listed_as_json(cli: Cli, redis: servers.RedisServer, tmp_path: Path) -> None:
    path = write_yaml(tmp_path / "yaml", wrong=TWO_MISTAKES)
    ran = cli("apply", "-f", path, "--redis-url", redis.url, "--json")
    assert ran.status == 2
    assert len(ran.document["problems"]) == 2


def test_an_empty_folder_is_rejected(cli: Cli, redis: servers.RedisServer, tmp_path: Path) -> None:
    ran = cli("apply", "-f", write_yaml(tmp_path / "yaml"), "--redis-url", redis.url)
    assert ran.status == 2
    assert "holds no .yaml" in ran.err


def test_the_samples_are_valid(cli: Cli, redis: servers.RedisServer) -> None:
    assert cli("apply", "-f", str(SAMPLES), "--redis-url", redis.url).status == 0
    assert _models(cli, redis) == ["classify-image", "embed", "translate"]


def test_deletes_by_name_namespace_and_file(
    cli: Cli, redis: servers.RedisServer, tmp_path: Path
) -> None:
    at = ("--redis-url", redis.url)
    cli("apply", "-f", str(SAMPLES), *at)
    path = write_yaml(tmp_path / "yaml", a=SERVICE.format(name="a", folder="x"))
    cli("apply", "-f", path, "-n", "t", *at)
    assert cli("delete", "t/a", *at).out.strip() == (
        'inferenceservice.serving.kserve.io "a" deleted'
    )
    assert cli("delete", "embed", "-n", "default", *at).status == 0
    again = cli("delete", "embed", *at)
    assert again.status == 1
    assert "not found: default/embed" in again.err
    assert cli("delete", "-f", str(SAMPLES / "translate.yaml"), *at).status == 0
    assert _models(cli, redis) == ["classify-image"]


def _for_loading(policy: str) -> str:
    service = SERVICE.format(name="picky", folder="one")
    annotations = f"metadata:\n  annotations: {{pilotlight.io/loading: {policy}}}\n"
    return service.replace("metadata:\n", annotations, 1)


def test_a_model_for_another_loading_policy_than_the_pools_is_refused(
    cli: Cli, redis: servers.RedisServer, tmp_path: Path
) -> None:
    async def lead() -> None:
        registry = await Registry.connect(redis.url, "picky")
        await AutoscalerLog(registry).acquire_lead("a", ttl_s=600, loading="predictive")
        await registry.close()

    asyncio.run(lead())
    path = write_yaml(
        tmp_path / "yaml", picky=_for_loading("clockwork"), b=SERVICE.format(name="b", folder="one")
    )
    at = ("--redis-url", redis.url, "--pool", "picky")
    ran = cli("apply", "-f", path, *at)
    assert ran.status == 2
    assert (
        "default/picky: metadata.annotations[pilotlight.io/loading] must be 'predictive', the "
        "loading policy of pool picky, was 'clockwork'; remove the annotation, or start"
    ) in ran.err
    assert cli("get", "models", "--json", *at).document == []
    write_yaml(tmp_path / "yaml", picky=_for_loading("predictive"))
    assert cli("apply", "-f", path, *at).status == 0


def test_up_refuses_a_model_for_another_loading_policy(cli: Cli, tmp_path: Path) -> None:
    path = write_yaml(tmp_path / "yaml", picky=_for_loading("clockwork"))
    ran = cli("up", "-f", path, "--home", str(tmp_path / "home"), "--loading", "baseline")
    assert ran.status == 2
    assert "must be 'baseline', the loading policy of pool default, was 'clockwork'" in ran.err


GRAPH = """
apiVersion: serving.kserve.io/v1alpha1
kind: InferenceGraph
metadata: {name: chain}
spec:
  nodes:
    root:
      routerType: Sequence
      steps: [{serviceName: a}, {serviceName: b, data: $response}]
"""


def test_deletes_what_apply_prints_and_nothing_of_another_kind(
    cli: Cli, redis: servers.RedisServer, tmp_path: Path
) -> None:
    at = ("--redis-url", redis.url)
    graph = GRAPH.replace("name: chain", "name: a")
    path = write_yaml(tmp_path / "yaml", a=SERVICE.format(name="a", folder="one"), graph=graph)
    printed = [line.split()[0] for line in cli("apply", "-f", path, *at).out.splitlines()]
    assert cli("describe", "model", printed[0], *at).status == 0
    assert cli("delete", printed[1], *at).status == 0
    assert _models(cli, redis) == ["a"]
    missing = cli("delete", printed[1], *at)
    assert (missing.status, _models(cli, redis)) == (1, ["a"])
    assert cli("delete", printed[0], *at).out == 'inferenceservice.serving.kserve.io "a" deleted\n'
    assert _models(cli, redis) == []


def test_graphs_are_applied_with_models_and_deleted(
    cli: Cli, redis: servers.RedisServer, tmp_path: Path
) -> None:
    path = write_yaml(tmp_path / "yaml", a=SERVICE.format(name="a", folder="one"), graph=GRAPH)
    assert cli("apply", "-f", path, "--redis-url", redis.url, "--dry-run").out.splitlines() == [
        "inferenceservice.serving.kserve.io/a created (dry run)",
        "inferencegraph.serving.kserve.io/chain created (dry run)",
    ]
    first = cli("apply", "-f", path, "--redis-url", redis.url)
    assert first.out.splitlines()[1] == "inferencegraph.serving.kserve.io/chain created"
    again = cli("apply", "-f", path, "--redis-url", redis.url)
    assert again.out.splitlines()[1] == "inferencegraph.serving.kserve.io/chain unchanged"
    deleted = cli("delete", "chain", "--redis-url", redis.url)
    assert deleted.out.strip() == 'inferencegraph.serving.kserve.io "chain" deleted'
    assert cli("delete", "chain", "--redis-url", redis.url).status == 1


def test_a_wrong_graph_changes_nothing(
    cli: Cli, redis: servers.RedisServer, tmp_path: Path
) -> None:
    graph = GRAPH.replace("routerType: Sequence", "routerType: Chain")
    path = write_yaml(tmp_path / "yaml", a=SERVICE.format(name="a", folder="one"), graph=graph)
    refused = cli("apply", "-f", path, "--redis-url", redis.url)
    assert refused.status == 2
    assert "spec.nodes.root.routerType must be one of Sequence" in refused.err
    assert _models(cli, redis) == []


def test_says_which_models_pods_cannot_read(
    cli: Cli, redis: servers.RedisServer, tmp_path: Path
) -> None:
    path = write_yaml(
        tmp_path / "yaml",
        a=SERVICE.format(name="fine", folder="one"),
        b=SERVICE.format(name="broken", folder="two"),
    )
    with (
        httpx.Client(trust_env=False) as client,
        running_pods("pod-a", redis_url=redis.url, pool="default", client=client),
    ):
        unchecked = cli("apply", "-f", path, "--no-check", "--redis-url", redis.url)
        assert "cannot be read" not in unchecked.out
        cli("delete", "-f", path, "--redis-url", redis.url)
        applied = cli("apply", "-f", path, "--redis-url", redis.url)
    assert applied.status == 0
    assert applied.out.splitlines() == [
        "inferenceservice.serving.kserve.io/fine created",
        "inferenceservice.serving.kserve.io/broken created (cannot be read: no such bucket)",
    ]


def test_says_what_it_waits_for(
    cli: Cli, redis: servers.RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "_SILENCE_S", 0.0)
    path = write_yaml(tmp_path / "yaml", a=SERVICE.format(name="a", folder="one"))
    with (
        httpx.Client(trust_env=False) as client,
        running_pods("pod-a", redis_url=redis.url, pool="default", client=client),
    ):
        applied = cli("apply", "-f", path, "--redis-url", redis.url)
    assert applied.err == (
        "asking pods whether they can read the new models (--no-check: leave it out) …\n"
    )


@pytest.mark.parametrize("name", ["no-disk", "draining", "unmounted-pod-a"])
def test_what_ails_one_pod_is_not_the_models(
    cli: Cli, redis: servers.RedisServer, tmp_path: Path, name: str
) -> None:
    path = write_yaml(tmp_path / "yaml", a=SERVICE.format(name=name, folder="one"))
    with (
        httpx.Client(trust_env=False) as client,
        running_pods("pod-a", "pod-b", redis_url=redis.url, pool="default", client=client),
    ):
        applied = cli("apply", "-f", path, "--redis-url", redis.url)
    assert applied.out == f"inferenceservice.serving.kserve.io/{name} created\n"
