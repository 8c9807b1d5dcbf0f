"""`apply` and `delete` with a real registry, without pods."""

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from pilotlight import output
from pilotlight.commands import declaration_check
from registry.redis.client import Registry
from registry.redis.reports import AutoscalerLog
from tests import servers
from tests.gateway.gateway_harness import running_pods
from tests.pilotlight.conftest import SAMPLES, SERVICE, Cli, write_yaml
from tests.plug_ins import install, path_of_plug_ins

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

_NEAREST = "  annotations: {{pilotlight.io/policy: nearest}}\n"


def _documents(verb: Cli) -> Any:
    return verb("get", "models", "--json").document


def _models(verb: Cli) -> list[str]:
    return [each["name"] for each in _documents(verb)]


def test_prints_outcomes_like_kubectl(verb: Cli, tmp_path: Path) -> None:
    path = write_yaml(
        tmp_path / "yaml",
        a=SERVICE.format(name="a", folder="one"),
        b=SERVICE.format(name="b", folder="one"),
    )
    first = verb("apply", "-f", path)
    assert first.status == 0
    assert first.out.splitlines() == [
        "inferenceservice.serving.kserve.io/a created",
        "inferenceservice.serving.kserve.io/b created",
    ]
    write_yaml(tmp_path / "yaml", b=SERVICE.format(name="b", folder="two"))
    second = verb("apply", "-f", path, "--json")
    assert [(each["name"], each["outcome"]) for each in second.document] == [
        ("a", "unchanged"),
        ("b", "configured"),
    ]


def test_models_of_our_own_kind(verb: Cli, tmp_path: Path) -> None:
    text = SERVICE.format(name="own", folder="one").replace("InferenceService", "Model")
    text = text.replace("serving.kserve.io/v1beta1", "pilotlight.io/v1alpha1")
    path = write_yaml(tmp_path / "yaml", a=text)
    assert verb("apply", "-f", path).out == "model.pilotlight.io/own created\n"
    assert verb("apply", "-f", path).out == "model.pilotlight.io/own unchanged\n"
    assert _models(verb) == ["own"]
    other = write_yaml(tmp_path / "other", a=SERVICE.format(name="own", folder="one"))
    for flags in ([], ["--dry-run"], ["--no-check"]):
        refused = verb("apply", "-f", other, *flags)
        assert refused.status == (1 if flags == ["--dry-run"] else 2)
        assert "Model default/own declares the model already; delete it first" in refused.err
    assert verb("delete", "model/own").out == 'model.pilotlight.io "own" deleted\n'


def test_fields_and_arguments_that_mean_nothing_are_named(verb: Cli, tmp_path: Path) -> None:
    fields = "      args: [--workers=2, --model_name, x]\n      resources: {limits: {cpu: 1}}\n"
    text = SERVICE.format(name="ignoring", folder="one").rstrip() + "\n" + fields
    path = write_yaml(tmp_path / "yaml", a=text)
    applied = verb("apply", "-f", path)
    assert applied.out == "inferenceservice.serving.kserve.io/ignoring created\n"
    place = "Warning: InferenceService default/ignoring: spec.predictor.model"
    assert [each.partition(" has no effect: ")[0] for each in applied.err.splitlines()] == [
        f"{place}.resources",
        f"{place}.args --workers",
    ]
    [document] = verb("apply", "-f", path, "--json").document
    assert [f"Warning: {each}" for each in document["warnings"]] == applied.err.splitlines()


def test_a_dry_run_prints_what_would_change_and_changes_nothing(verb: Cli, tmp_path: Path) -> None:
    path = write_yaml(tmp_path / "yaml", a=SERVICE.format(name="a", folder="one"))
    dry = verb("apply", "-f", path, "--dry-run")
    assert dry.out == "inferenceservice.serving.kserve.io/a created (dry run)\n"
    assert _models(verb) == []
    verb("apply", "-f", path)
    assert "unchanged (dry run)" in verb("apply", "-f", path, "--dry-run").out
    write_yaml(tmp_path / "yaml", a=SERVICE.format(name="a", folder="two"))
    assert "configured (dry run)" in verb("apply", "-f", path, "--dry-run").out
    assert "configured" in verb("apply", "-f", path).out


@pytest.mark.parametrize("flag", ["--dry-run", "--offline"])
def test_files_are_checked_without_a_platform(cli: Cli, tmp_path: Path, flag: str) -> None:
    text = SERVICE.format(name="a", folder="one").rstrip() + "\n      image: mine\n"
    path = write_yaml(tmp_path / "yaml", a=text, graph=GRAPH)
    ran = cli("apply", "-f", path, flag)
    assert ran.status == 0
    assert ran.out.splitlines() == [
        "inferenceservice.serving.kserve.io/a valid (no platform asked)",
        "inferencegraph.serving.kserve.io/chain valid (no platform asked)",
    ]
    assert ran.err.startswith("Warning: InferenceService default/a: spec.predictor.model.image has")
    listed = cli("apply", "-f", path, flag, "--json").document
    assert [each["outcome"] for each in listed] == ["valid (no platform asked)"] * 2


@pytest.mark.parametrize("flag", ["--dry-run", "--offline"])
def test_a_check_of_files_with_mistakes_ends_with_1(cli: Cli, tmp_path: Path, flag: str) -> None:
    path = write_yaml(tmp_path / "yaml", wrong=TWO_MISTAKES)
    ran = cli("apply", "-f", path, flag)
    assert ran.status == 1
    assert "pilotlight.io/polcy" in ran.err
    assert len(cli("apply", "-f", path, flag, "--json").document["problems"]) == 2


def test_a_stopped_model_is_applied_and_is_not_ready(verb: Cli, tmp_path: Path) -> None:
    stop = '  annotations: {{serving.kserve.io/stop: "true"}}\n'
    text = SERVICE.replace("  name: {name}\n", "  name: {name}\n" + stop)
    path = write_yaml(tmp_path / "yaml", a=text.format(name="a", folder="one"))
    assert "cannot be served: stopped by the annotation" in verb("apply", "-f", path).out
    [document] = _documents(verb)
    assert not document["ready"]
    write_yaml(tmp_path / "yaml", a=SERVICE.format(name="a", folder="one"))
    assert verb("apply", "-f", path).out.endswith("/a configured\n")
    [document] = _documents(verb)
    assert document["needs"] == ""


def test_a_model_that_wants_clients_asked_is_refused_where_nobody_asks(
    verb: Cli, tmp_path: Path
) -> None:
    wants = '  annotations: {{security.opendatahub.io/enable-auth: "true"}}\n'
    text = SERVICE.replace("  name: {name}\n", "  name: {name}\n" + wants)
    path = write_yaml(tmp_path / "yaml", a=text.format(name="a", folder="one"))
    ran = verb("apply", "-f", path)
    assert ran.status == 2
    assert (
        "default/a: metadata.annotations[security.opendatahub.io/enable-auth] is not supported"
        in ran.err
    )
    assert _models(verb) == []


def test_reports_all_mistakes_and_applies_nothing(verb: Cli, tmp_path: Path) -> None:
    path = write_yaml(
        tmp_path / "yaml",
        a_good=SERVICE.format(name="a", folder="one"),
        broken="kind: [",
        wrong_kind="apiVersion: v1\nkind: Pod\nmetadata: {name: x}\n",
        wrong=TWO_MISTAKES,
    )
    ran = verb("apply", "-f", path, "-f", "absent.yaml")
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
    assert _models(verb) == []


def test_a_routing_policy_that_cannot_be_imported_is_refused(verb: Cli, tmp_path: Path) -> None:
    install(tmp_path, "mine", "pilotlight.routing", {"nearest": "mine:gone"}, "import absent\n")
    annotated = SERVICE.replace("  name: {name}\n", "  name: {name}\n" + _NEAREST)
    path = write_yaml(tmp_path / "yaml", a=annotated.format(name="a", folder="one"))
    with path_of_plug_ins(tmp_path):
        ran = verb("apply", "-f", path)
    assert ran.status == 2
    assert "default/a: plug-in 'nearest' of mine 1.2 (pilotlight.routing) cannot be " in ran.err
    assert "No module named 'absent'" in ran.err
    assert _models(verb) == []


def test_mistakes_are_listed_as_json(verb: Cli, tmp_path: Path) -> None:
    path = write_yaml(tmp_path / "yaml", wrong=TWO_MISTAKES)
    ran = verb("apply", "-f", path, "--json")
    assert ran.status == 2
    assert len(ran.document["problems"]) == 2


def test_an_empty_folder_is_rejected(verb: Cli, tmp_path: Path) -> None:
    ran = verb("apply", "-f", write_yaml(tmp_path / "yaml"))
    assert ran.status == 2
    assert "holds no .yaml" in ran.err


def test_deletes_by_name_namespace_and_file(verb: Cli, tmp_path: Path) -> None:
    assert verb("apply", "-f", str(SAMPLES)).status == 0
    assert _models(verb) == ["classify-image", "embed", "translate"]
    path = write_yaml(tmp_path / "yaml", a=SERVICE.format(name="a", folder="x"))
    verb("apply", "-f", path, "-n", "t")
    assert verb("delete", "t/a").out.strip() == ('inferenceservice.serving.kserve.io "t/a" deleted')
    assert verb("delete", "embed", "-n", "default").status == 0
    again = verb("delete", "embed")
    assert again.status == 1
    assert "not found: default/embed" in again.err
    assert verb("delete", "-f", str(SAMPLES / "translate.yaml")).status == 0
    assert _models(verb) == ["classify-image"]


def _for_loading(policy: str) -> str:
    service = SERVICE.format(name="picky", folder="one")
    annotations = f"metadata:\n  annotations: {{pilotlight.io/loading: {policy}}}\n"
    return service.replace("metadata:\n", annotations, 1)


def test_a_model_for_another_loading_policy_than_the_pools_is_refused(
    verb: Cli, redis: servers.RedisServer, tmp_path: Path
) -> None:
    async def lead() -> None:
        registry = await Registry.connect(redis.url, "picky")
        await AutoscalerLog(registry).acquire_lead("a", ttl_s=600, loading="predictive")
        await registry.close()

    asyncio.run(lead())
    path = write_yaml(
        tmp_path / "yaml", picky=_for_loading("clockwork"), b=SERVICE.format(name="b", folder="one")
    )
    of_pool = ("--pool", "picky")
    ran = verb("apply", "-f", path, *of_pool)
    assert ran.status == 2
    assert (
        "default/picky: metadata.annotations[pilotlight.io/loading] must be 'predictive', the "
        "loading policy of pool picky, was 'clockwork'; remove the annotation, or start"
    ) in ran.err
    assert verb("get", "models", "--json", *of_pool).document == []
    write_yaml(tmp_path / "yaml", picky=_for_loading("predictive"))
    assert verb("apply", "-f", path, *of_pool).status == 0


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


def test_deletes_what_apply_prints_and_nothing_of_another_kind(verb: Cli, tmp_path: Path) -> None:
    graph = GRAPH.replace("name: chain", "name: a")
    path = write_yaml(tmp_path / "yaml", a=SERVICE.format(name="a", folder="one"), graph=graph)
    printed = [line.split()[0] for line in verb("apply", "-f", path).out.splitlines()]
    assert verb("describe", "model", printed[0]).status == 0
    assert verb("delete", printed[1]).status == 0
    assert _models(verb) == ["a"]
    missing = verb("delete", printed[1])
    assert (missing.status, _models(verb)) == (1, ["a"])
    assert verb("delete", printed[0]).out == 'inferenceservice.serving.kserve.io "a" deleted\n'
    assert _models(verb) == []


def test_graphs_are_applied_with_models_and_deleted(verb: Cli, tmp_path: Path) -> None:
    path = write_yaml(tmp_path / "yaml", a=SERVICE.format(name="a", folder="one"), graph=GRAPH)
    assert verb("apply", "-f", path, "--dry-run").out.splitlines() == [
        "inferenceservice.serving.kserve.io/a created (dry run)",
        "inferencegraph.serving.kserve.io/chain created (dry run)",
    ]
    first = verb("apply", "-f", path)
    assert first.out.splitlines()[1] == "inferencegraph.serving.kserve.io/chain created"
    again = verb("apply", "-f", path)
    assert again.out.splitlines()[1] == "inferencegraph.serving.kserve.io/chain unchanged"
    deleted = verb("delete", "chain")
    assert deleted.out.strip() == 'inferencegraph.serving.kserve.io "chain" deleted'
    assert verb("delete", "chain").status == 1


def test_a_wrong_graph_changes_nothing(verb: Cli, tmp_path: Path) -> None:
    graph = GRAPH.replace("routerType: Sequence", "routerType: Chain")
    path = write_yaml(tmp_path / "yaml", a=SERVICE.format(name="a", folder="one"), graph=graph)
    refused = verb("apply", "-f", path)
    assert refused.status == 2
    assert "spec.nodes.root.routerType must be one of Sequence" in refused.err
    assert _models(verb) == []


def test_says_which_models_pods_cannot_read(
    verb: Cli, redis: servers.RedisServer, tmp_path: Path
) -> None:
    path = write_yaml(
        tmp_path / "yaml",
        a=SERVICE.format(name="fine", folder="one"),
        b=SERVICE.format(name="broken", folder="two"),
    )
    with (
        httpx.Client(trust_env=False, timeout=60) as client,
        running_pods("pod-a", redis_url=redis.url, pool="default", client=client),
    ):
        unchecked = verb("apply", "-f", path, "--no-check")
        assert "cannot be read" not in unchecked.out
        verb("delete", "-f", path)
        applied = verb("apply", "-f", path)
        again = verb("apply", "-f", path, "--strict")
        shown = {each["name"]: each for each in _documents(verb)}
    assert applied.status == 0
    assert applied.out.splitlines() == [
        "inferenceservice.serving.kserve.io/fine created",
        "inferenceservice.serving.kserve.io/broken created (cannot be read: no such bucket)",
    ]
    assert again.status == 1
    assert "broken unchanged (cannot be read: no such bucket)" in again.out
    assert again.err == "not served (--strict): default/broken\n"
    assert shown["fine"]["ready"]
    assert not shown["broken"]["ready"]
    assert shown["broken"]["failure"]["reason"] == "Unreadable"
    assert shown["broken"]["failure"]["message"] == "no such bucket"


def test_a_model_that_a_pod_reads_for_long_is_not_waited_for(
    verb: Cli, redis: servers.RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(declaration_check, "_TIMEOUT_S", 0.5)
    path = write_yaml(tmp_path / "yaml", a=SERVICE.format(name="slow", folder="one"))
    with (
        httpx.Client(trust_env=False, timeout=60) as client,
        running_pods("pod-a", "pod-b", redis_url=redis.url, pool="default", client=client),
    ):
        applied = verb("apply", "-f", path, "--strict")
    assert applied.status == 0
    assert "slow created (not checked: a pod reads its files for more than 0.5 s)" in applied.out


def test_what_is_not_looked_at_is_said(verb: Cli, tmp_path: Path) -> None:
    service = SERVICE.format(name="a", folder="one")
    hub = service.replace(service.partition("storageUri: ")[2].split()[0], "hf://acme/tiny")
    path = write_yaml(tmp_path / "yaml", a=hub)
    applied = verb("apply", "-f", path, "--strict")
    assert applied.status == 0
    assert applied.out == (
        "inferenceservice.serving.kserve.io/a created"
        " (not checked: hf:// is read at the first load)\n"
    )


def test_says_what_it_waits_for(
    verb: Cli, redis: servers.RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "_SILENCE_S", 0.0)
    path = write_yaml(tmp_path / "yaml", a=SERVICE.format(name="a", folder="one"))
    with (
        httpx.Client(trust_env=False, timeout=60) as client,
        running_pods("pod-a", redis_url=redis.url, pool="default", client=client),
    ):
        applied = verb("apply", "-f", path)
    assert applied.err == (
        "asking pods whether they can read the new models (--no-check: leave it out) …\n"
    )


@pytest.mark.parametrize("name", ["no-disk", "draining", "unmounted-pod-a"])
def test_what_ails_one_pod_is_not_the_models(
    verb: Cli, redis: servers.RedisServer, tmp_path: Path, name: str
) -> None:
    path = write_yaml(tmp_path / "yaml", a=SERVICE.format(name=name, folder="one"))
    with (
        httpx.Client(trust_env=False, timeout=60) as client,
        running_pods("pod-a", "pod-b", redis_url=redis.url, pool="default", client=client),
    ):
        applied = verb("apply", "-f", path)
    assert applied.out == f"inferenceservice.serving.kserve.io/{name} created\n"
