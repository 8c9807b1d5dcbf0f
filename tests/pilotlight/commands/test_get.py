"""`get` and `autoscaler` with a real registry, without running pods."""

import asyncio
import re
import signal
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

from registry.domain.model import LoadFailure, Tier
from registry.domain.pod import Accelerator, GpuReading, PodInfo, PodReport
from registry.domain.records import POOL, ActionOutcome, ActionRecord, PodShape, WantedPods
from registry.redis.client import Registry
from registry.redis.reports import AutoscalerLog
from tests import servers
from tests.pilotlight.conftest import SAMPLES, SERVICE, Cli, write_yaml
from tests.registry.redis.clients import act


def test_without_pods_a_model_is_not_ready(verb: Cli) -> None:
    verb("apply", "-f", str(SAMPLES))
    [shown] = verb("get", "models", "translate", "--json").document
    assert (shown["namespace"], shown["name"]) == ("default", "translate")
    assert shown["policy"] == "colocation"
    assert shown["ready"] is False
    assert shown["tiers"] == {}
    assert shown["failure"] is None
    table = verb("get", "models")
    assert "default/translate" in table.out
    assert "no pod accepts requests" in table.out


def test_a_format_without_an_engine_is_ready_in_a_pool_with_a_model_server(
    verb: Cli, redis: servers.RedisServer, tmp_path: Path
) -> None:
    text = SERVICE.format(name="flowers", folder="flowers")
    file = write_yaml(tmp_path, flowers=text.replace("huggingface", "tensorflow"))
    assert "cannot be served" in verb("apply", "-f", file).out
    [shown] = verb("get", "models", "--json").document
    assert "modelFormat tensorflow" in shown["needs"]
    pod = PodInfo("pod-1", "127.0.0.1:1", "node-1", has_server=True)
    act(redis.url, "default", lambda registry: registry.register_pod(pod, lease_ttl_s=60))
    [shown] = verb("get", "models", "--json").document
    assert (shown["needs"], shown["ready"]) == ("", True)
    assert "cannot be served" not in verb("apply", "-f", file, "--no-check").out


def test_a_model_with_a_transformer_is_not_ready_on_one_machine(
    verb: Cli, redis: servers.RedisServer, tmp_path: Path
) -> None:
    text = SERVICE.format(name="flowers", folder="flowers")
    transformer = "  transformer: {containers: [{image: mine}]}\n"
    file = write_yaml(tmp_path, flowers=text.replace("spec:\n", f"spec:\n{transformer}"))
    assert "spec.transformer is run as containers" in verb("apply", "-f", file).out
    pod = PodInfo("pod-1", "127.0.0.1:1", "node-1")
    act(redis.url, "default", lambda registry: registry.register_pod(pod, lease_ttl_s=60))
    [shown] = verb("get", "models", "--json").document
    assert "needs a cluster" in shown["needs"]
    assert shown["ready"] is False


def test_without_pods_a_model_is_ready_while_an_autoscaler_leads(
    verb: Cli, redis: servers.RedisServer
) -> None:
    async def lead(ttl_s: float) -> None:
        registry = await Registry.connect(redis.url)
        scaling = AutoscalerLog(registry)
        token = await scaling.acquire_lead("autoscaler", ttl_s=ttl_s)
        assert token is not None
        await scaling.set_wanted_pods(
            token, WantedPods((PodShape(0),)), ActionRecord("scale", POOL, "idle", "none", 0.0)
        )
        await registry.close()

    def is_ready() -> bool:
        [shown] = verb("get", "models", "embed", "--json").document
        return bool(shown["ready"])

    verb("apply", "-f", str(SAMPLES))
    assert not is_ready()
    asyncio.run(lead(600))
    assert is_ready()
    asyncio.run(lead(0.1))
    servers.wait_until(
        lambda: not is_ready(), what="not ready: the wanted pods remain, but no autoscaler leads"
    )


def test_pods_are_shown_with_their_share_of_an_accelerator(
    verb: Cli, redis: servers.RedisServer
) -> None:
    gpu = Accelerator("GPU-1", "NVIDIA H200", 141 * 10**9, 132)
    infos = [
        PodInfo("pod-a", "127.0.0.1:1", node="n", accelerator=gpu, share=0.5),
        PodInfo("pod-b", "127.0.0.1:2", node="n"),
    ]

    async def register(registry: Registry) -> None:
        epochs = [await registry.register_pod(info, lease_ttl_s=600) for info in infos]
        report = PodReport(gpu=GpuReading(37.0, 12_500_000_000, 61.0, xid=31))
        await registry.heartbeat("pod-a", epochs[0], report, lease_ttl_s=600)

    act(redis.url, "default", register)
    table = verb("get", "pods").out.splitlines()
    assert "37 %, 12 GB, 61 °C, XID 31" in table[1]
    start = table[0].index("ACCELERATOR")
    assert [line[start:].split("   ")[0] for line in table] == [
        "ACCELERATOR",
        "NVIDIA H200, 50 %",
        "-",
    ]
    shared, older = verb("get", "pods", "--json").document
    assert shared["accelerator"] == asdict(gpu)
    assert (shared["share"], older["share"]) == (0.5, 1.0)
    assert (shared["gpu"]["temperature_c"], older["gpu"]) == (61.0, None)


def test_a_table_of_models_fits_120_columns(verb: Cli, redis: servers.RedisServer) -> None:
    message = f"model.safetensors of s3://models/{'x' * 200} has no tensor of that name"
    verb("apply", "-f", str(SAMPLES))

    async def hold(registry: Registry) -> None:
        models = (await registry.cluster()).models.values()
        for index in range(8):
            pod = PodInfo(f"pod-{index}", f"127.0.0.1:{index + 1}", "node-1")
            epoch = await registry.register_pod(pod, lease_ttl_s=60)
            for record in models:
                tier = Tier.DEVICE if index < 5 else Tier.DISK
                await registry.set_tier(pod.name, epoch, record.spec.key, tier, 1)
                failure = LoadFailure(record.spec.key, "ModelLoadFailed", message, 1, 0.0)
                await registry.report_model_failure(pod.name, epoch, failure)

    act(redis.url, "default", hold)
    table = verb("get", "models").out.splitlines()
    assert max(map(len, table)) <= 120
    assert re.search(
        r"warm on 5 pods; disk on 3 pods   100 %     \d+s    ModelLoadFailed:", table[1]
    )
    described = verb("describe", "model", "embed").out
    pods = "pods:\n  warm: pod-0, pod-1, pod-2, pod-3, pod-4\n  disk: pod-5, pod-6, pod-7\n"
    assert pods in described
    assert "[]" not in described
    assert "null" not in described
    wide = verb("get", "models", "-o", "wide").out
    assert message in wide
    assert "warm on pod-0, pod-1, pod-2, pod-3, pod-4; disk on pod-5, pod-6, pod-7" in wide


def test_output_formats(verb: Cli) -> None:
    verb("apply", "-f", str(SAMPLES))
    json_ = verb("get", "models", "-o", "json")
    assert json_.document == verb("get", "models", "--json").document
    assert "AUTOSCALER" in verb("get", "models", "-o", "wide").out
    assert "AUTOSCALER" not in verb("get", "models").out
    wrong = verb("get", "models", "-o", "yml")
    assert (wrong.status, wrong.err) == (2, "error: -o must be one of wide, json, was 'yml'\n")
    assert verb("get", "models", "-w", "--json").status == 2


def test_watching_prints_the_rows_that_change(verb: Cli, tmp_path: Path) -> None:
    """In a process of its own, as it ends by a signal only."""
    program = subprocess.Popen(
        [sys.executable, "-m", "pilotlight", "get", "models", "-w", *verb.more],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=servers.REPOSITORY,
    )
    try:
        assert program.stdout is not None
        assert program.stdout.readline().split()[0] == "NAME"
        path = write_yaml(tmp_path / "y", new=SERVICE.format(name="new", folder="x"))
        assert verb("apply", "-f", path).status == 0
        assert program.stdout.readline().split()[:2] == ["default/new", "False"]
        program.send_signal(signal.SIGINT)
        out, errors = program.communicate(timeout=120)
    finally:
        program.kill()
    assert out == ""
    assert "Traceback" not in errors


def test_a_model_is_described_with_the_actions_on_it(verb: Cli, redis: servers.RedisServer) -> None:
    verb("apply", "-f", str(SAMPLES))

    async def act_on(registry: Registry) -> None:
        log = AutoscalerLog(registry)
        token = await log.acquire_lead("autoscaler", ttl_s=60)
        assert token is not None
        load = ActionRecord("load", "default/embed", "forecast", "likely", 0.0, pod="pod-1")
        await log.begin_action(token, load, ttl_s=30)
        await log.end_action(replace(load, outcome=ActionOutcome.FAILED, error="no memory"))
        other = ActionRecord("load", "default/translate", "forecast", "likely", 0.0, pod="pod-1")
        await log.begin_action(token, other, ttl_s=30)

    act(redis.url, "default", act_on)
    shown = verb("describe", "model", "embed").out
    assert "storage uri: s3://" in shown
    assert "load at pod-1, forecast: likely: failed no memory" in shown
    [action] = verb("describe", "model", "embed", "--json").document["actions"]
    assert (action["outcome"], action["subject"]) == ("failed", "default/embed")
    assert verb("describe", "model", "nothing").status == 1
    table = verb("autoscaler").out.splitlines()
    assert table[0].split()[:2] == ["AGE", "ACTION"]
    assert "unknown: no end was recorded" in table[1]  # it began in 1970
    assert "failed no memory" in table[2]
    assert not any("begun" in line for line in table)
    assert all(re.fullmatch(r"\d+[smhd]\d*\w*", line.split()[0]) for line in table[1:])


def test_a_pod_is_described(verb: Cli, redis: servers.RedisServer) -> None:
    info = PodInfo("pod-a", "127.0.0.1:1", node="n", memory_bytes=10**10)
    act(redis.url, "default", lambda registry: registry.register_pod(info, lease_ttl_s=600))
    shown = verb("describe", "pod", "pod-a").out
    assert "address: 127.0.0.1:1" in shown
    assert "memory bytes: 10000000000" in shown


def test_no_pods_are_explained_by_scaling_to_zero(verb: Cli, redis: servers.RedisServer) -> None:
    assert "`pilotlight logs`" in verb("get", "pods").err

    async def want(registry: Registry, count: int) -> None:
        log = AutoscalerLog(registry)
        token = await log.acquire_lead("test", ttl_s=60)
        assert token is not None
        action = ActionRecord("scale", POOL, "idle", "none", 0.0)
        assert await log.set_wanted_pods(token, WantedPods((PodShape(count),)), action)

    act(redis.url, "default", lambda registry: want(registry, 0))
    shown = verb("get", "pods").err
    assert "--min-pods 0" in shown
    assert "the next request starts one" in shown
    act(redis.url, "default", lambda registry: want(registry, 2))
    assert "2 are starting" in verb("get", "pods").err


def test_every_kind_is_shown_and_deleted_by_all_of_its_words(verb: Cli) -> None:
    graphs = str(SAMPLES / "graphs")
    assert verb("apply", "-f", str(SAMPLES), "-f", graphs, "--no-check").status == 0
    [graph] = verb("get", "ig", "--json").document
    assert graph["nodes"]["both"] == {"router": "Ensemble", "steps": ["embed", "embed"]}
    assert "both: Ensemble of embed, embed" in verb("get", "graphs", "embed-twice").out
    assert "- embed\n" in verb("describe", "inferencegraph", "embed-twice").out
    assert verb("get", "iapp").err == verb("get", "applications").err
    assert verb("describe", "isvc", "embed").out.startswith("namespace: default\nname: embed\n")
    deleted = verb("delete", "models", "embed", "translate")
    assert 'inferenceservice.serving.kserve.io "translate" deleted' in deleted.out
    assert verb("delete", "graph/embed-twice").status == 0
    assert verb("get", "graphs").err.startswith("no graphs; create one")
    assert verb("describe", "graph", "embed-twice").status == 1


def test_an_unknown_kind_is_answered_by_the_known_ones(verb: Cli) -> None:
    unknown = verb("get", "foos")
    assert unknown.status == 2
    assert "There are: models, pods, workflows, applications" in unknown.err
    refused = verb("delete", "pods", "pod-1")
    assert (refused.status, "`pilotlight up --pods` sets their number" in refused.err) == (2, True)
