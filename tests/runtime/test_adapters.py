"""LoRA adapters as models that share a base: loads, memory, evictions, answers."""

import asyncio
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from registry.domain.model import ModelSpec
from runtime.device.staged_memory import StagedMemory
from runtime.errors import LoadFailed, ModelInvalid
from runtime.generation.engine import Sampling
from tests.runtime.adapters import merge, write_adapter
from tests.runtime.conftest import Cluster
from tests.runtime.fake_engine import FakeEngine
from tests.runtime.http import predict
from tests.runtime.local_pod import LocalPod, local_pod, spec_of
from tests.runtime.networks import load_network

PATHS = ["transformer.h.0.attn.c_attn", "transformer.h.1.mlp.c_fc"]
PROMPT = [260, 270, 280]


@pytest.fixture
def base(models: Path) -> ModelSpec:
    return spec_of("base", models / "tiny-gpt2")


def adapter_of(models: Path, folder: Path, seed: int) -> ModelSpec:
    network = load_network(models / "tiny-gpt2")
    written = write_adapter(folder / f"adapter-{seed}", network, PATHS, seed)
    return replace(spec_of(f"adapter-{seed}", written), base="base")


async def tokens_of(pod: LocalPod, spec: ModelSpec) -> list[int]:
    entry = pod.loader.store.acquire(spec.key)
    assert entry is not None
    assert entry.model.generator is not None
    ids: list[int] = []
    greedy = Sampling(max_tokens=12, seed=0, temperature=0)
    async with aclosing(entry.model.generator.generate(PROMPT, greedy)) as chunks:
        async for chunk in chunks:
            ids += chunk.token_ids
    pod.loader.store.end_use(entry)
    return ids


def merged_tokens(models: Path, adapter: Path) -> list[int]:
    import torch

    network: Any = load_network(models / "tiny-gpt2")
    merge(network, adapter)
    with torch.inference_mode():
        row = network.generate(
            input_ids=torch.tensor([PROMPT]), max_new_tokens=12, do_sample=False
        )[0]
    return [int(each) for each in row[len(PROMPT) :]]


def test_adapters_share_the_weights_of_their_base(
    base: ModelSpec, models: Path, tmp_path: Path
) -> None:
    engine = FakeEngine()
    first, second = (adapter_of(models, tmp_path, seed) for seed in (1, 2))

    async def run() -> tuple[list[list[int]], int]:
        memory = StagedMemory(engine)
        async with local_pod(tmp_path / "pod", memory=memory, declared=[base]) as pod:
            await pod.load(first)  # loads the base, too
            assert pod.loader.store.holds(base.key)
            whole = engine.allocated_bytes
            await pod.load(second)
            added = engine.allocated_bytes - whole
            answers = [await tokens_of(pod, spec) for spec in (base, first, second)]
            return answers, added

    (plain, one, two), added = asyncio.run(run())
    assert one == merged_tokens(models, tmp_path / "adapter-1")
    assert two == merged_tokens(models, tmp_path / "adapter-2")
    assert plain not in (one, two)
    assert added < (models / "tiny-gpt2" / "model.safetensors").stat().st_size / 2


async def test_base_leaves_with_its_adapters_and_not_while_one_is_used(
    base: ModelSpec, models: Path, tmp_path: Path
) -> None:
    adapter, other = adapter_of(models, tmp_path, 1), spec_of("other", models / "tiny-gpt2")

    async with local_pod(tmp_path / "pod", declared=[base]) as pod:
        store = pod.loader.store
        await pod.load(adapter)
        entry = store.acquire(adapter.key)
        assert entry is not None
        assert store.by_key[base.key].users == 1
        store.budget_bytes = store.used_bytes
        assert not store.try_reserve(other.key, store.bytes_of(base.key))
        store.end_use(entry)
        assert store.by_key[base.key].users == 0
        await pod.load(other)  # evicts the base
        assert store.by_key.keys() == {other.key}
        assert {key for key, *_ in pod.evictions} == {base.key, adapter.key}


async def test_an_adapter_alone_leaves_its_base(
    base: ModelSpec, models: Path, tmp_path: Path
) -> None:
    adapter = adapter_of(models, tmp_path, 1)

    async with local_pod(tmp_path / "pod", declared=[base]) as pod:
        for _ in range(2):
            await pod.load(adapter)
            await pod.unload(adapter)
        assert pod.loader.store.by_key.keys() == {base.key}
        assert pod.loader.store.by_key[base.key].users == 0
        assert await tokens_of(pod, base)


async def test_a_withdrawn_base_stays_until_its_adapters_are_not_used(
    base: ModelSpec, models: Path, tmp_path: Path
) -> None:
    adapter = adapter_of(models, tmp_path, 1)

    async with local_pod(tmp_path / "pod", declared=[base]) as pod:
        store = pod.loader.store
        await pod.load(adapter)
        entry = store.acquire(adapter.key)
        assert entry is not None
        assert store.retire(base.key, "withdrawn")
        assert store.holds(base.key)
        store.end_use(entry)
        assert not store.by_key


@pytest.mark.parametrize("kind", ["absent", "adapter", "other-format", "unnamed"])
async def test_wrong_bases_are_told(
    models: Path, tmp_path: Path, base: ModelSpec, kind: str
) -> None:
    adapter = adapter_of(models, tmp_path, 1)
    if kind == "unnamed":
        adapter = replace(adapter, base="")
    declared = {
        "absent": [],
        "adapter": [replace(adapter, name=base.name)],
        "other-format": [spec_of("base", models / "tiny-bert")],
        "unnamed": [base],
    }[kind]
    told = {
        "absent": "adapter of default/base, which is not declared",
        "adapter": "which is an adapter itself",
        "other-format": "which the base's network does not have",
        "unnamed": "annotation pilotlight.io/base-model",
    }[kind]

    async with local_pod(tmp_path / "pod", declared=declared) as pod:
        with pytest.raises((LoadFailed, ModelInvalid), match=told):
            await pod.load(adapter)


@pytest.mark.slow
def test_a_pod_serves_an_adapter_of_a_declared_base(
    cluster: Cluster, base: ModelSpec, models: Path, tmp_path: Path
) -> None:
    adapter = adapter_of(models, tmp_path, 1)
    cluster.do(lambda registry: registry.put_models([base, adapter]))
    pod = cluster.pod()
    answers = [
        predict(pod.url, name, "some words").json()["predictions"] for name in ("adapter-1", "base")
    ]
    assert answers[0] != answers[1]
    assert cluster.tiers(base) == cluster.tiers(adapter) == {"pod-a": "device"}
