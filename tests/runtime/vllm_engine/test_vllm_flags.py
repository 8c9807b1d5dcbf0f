"""What vLLM is started with, and what its metrics say."""

from pathlib import Path

import pytest

from registry.domain.model import ModelName, ModelSpec, Precision, TaskOptions
from runtime.engines.engine_adapter import (
    EngineLoad,
    EngineStart,
    load_of,
    served_names,
    slots_of,
    stages_of,
)
from runtime.engines.vllm_adapter import VllmAdapter

METRICS = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_waiting{engine="0",model_name="m"} 2.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:prompt_tokens_total{engine="0",model_name="m"} 40.0
vllm:generation_tokens_total{engine="0",model_name="m"} 2.0
"""


def test_the_load_is_read_from_the_metrics() -> None:
    found = load_of(METRICS, VllmAdapter.metrics)
    assert found == EngineLoad(running=3, waiting=2, cache_used=0.25, tokens=42)
    assert load_of("", VllmAdapter.metrics) == EngineLoad()


@pytest.mark.parametrize(
    ("load", "has_queued", "slots"),
    [
        pytest.param(EngineLoad(), False, 256, id="idle"),
        pytest.param(EngineLoad(running=10, cache_used=0.5), False, 20, id="half-of-its-blocks"),
        pytest.param(EngineLoad(running=10, cache_used=0.001), False, 256, id="short-requests"),
        pytest.param(EngineLoad(running=3, cache_used=1.0), False, 3, id="no-block"),
        pytest.param(EngineLoad(running=3, waiting=2, cache_used=0.5), False, 6, id="just-came"),
        pytest.param(EngineLoad(running=3, waiting=2, cache_used=0.5), True, 3, id="queued"),
        pytest.param(EngineLoad(waiting=9), True, 1, id="never-none"),
    ],
)
def test_an_engine_holds_as_many_as_its_free_blocks_take(
    load: EngineLoad, has_queued: bool, slots: int
) -> None:
    assert slots_of(load, has_queued, 256) == slots


def test_stages_of_a_start_are_those_of_the_log() -> None:
    log = """\
(Worker pid=1) INFO 11-30 08:49:40 [default_loader.py:501] Loading weights took 1.50 seconds
(EngineCore pid=2) INFO [core.py:402] init engine (profile, create kv cache, warmup model) took 2 s
"""
    found = stages_of(log, 10.0, VllmAdapter.stages)
    assert found == {"process": 6.5, "weights": 1.5, "warm-up": 2.0}


def test_arguments_of_the_model_come_last() -> None:
    spec = ModelSpec(
        ModelName("team", "m"),
        "s3://m/m",
        precision=Precision.BFLOAT16,
        options=TaskOptions(max_tokens=99),
        engine_args=("--max-num-seqs=4",),
    )
    start = EngineStart(
        spec, Path("/m"), Path("/c"), 7, device_share=0.25, threads=2, can_sleep=True, lora=False
    )
    found = VllmAdapter("python").arguments(start, "/s")
    assert found[:2] == ["--model", "/m"]
    for pair in (["--kv-cache-memory-bytes", "7"], ["--gpu-memory-utilization", "0.250"],
                 ["--dtype", "bfloat16"], ["--max-model-len", "99"], ["--uds", "/s"]):  # fmt: skip
        assert found[found.index(pair[0]) + 1] == pair[1]
    assert "--enable-sleep-mode" in found
    assert found[-1] == "--max-num-seqs=4"


def test_a_model_is_called_by_all_of_its_names() -> None:
    assert served_names(ModelName("default", "m")) == ("m", "default/m", "default~m")
    assert served_names(ModelName("team", "m")) == ("team/m", "team~m")
