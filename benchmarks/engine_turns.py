"""Five language models on a budget for two engines: the run, then its arrivals under other rules.

`python -m benchmarks.engine_turns`, with PILOTLIGHT_LLAMA_SERVER or PILOTLIGHT_VLLM_PYTHON. The
requests follow Zipf's law (exponent 1). The simulator then plays the same arrivals with the times
measured in the run: by the loading policies, and as llama-swap does, whose one engine is that of
the last request (a budget for one).
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow.compute as pc
import pyarrow.parquet as pq
import yaml

from benchmarks.machine import REPOSITORY, machine_facts
from benchmarks.marks import Mark, mark_lines
from pilotlight.sample_models.make_model import make_model
from tests.runtime.llama_cpp.gguf_model import write_gguf

MODELS: Final = ("a", "b", "c", "d", "e")
POLICIES: Final = ("predictive", "keep-alive", "none")
LAST_WINS: Final = "llama-swap's rule"
_SERVICE: Final = """---
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata: {{name: {name}}}
spec: {{predictor: {{model: {{modelFormat: {{name: huggingface}}, storageUri: "s3://models/{name}"}}}}}}
"""


@dataclass(frozen=True, slots=True)
class Engine:
    flags: tuple[str, ...]
    pod_memory: str
    """Two engines and no third."""
    rate: float
    """Requests per second, so that starts take well below half of the time."""


def engine_of(environment: dict[str, str]) -> Engine | None:
    if server := environment.get("PILOTLIGHT_LLAMA_SERVER"):
        return Engine(("--llama-server", server), "800Mi", 0.5)
    if python := environment.get("PILOTLIGHT_VLLM_PYTHON"):
        return Engine(("--engine-python", python), "4Gi", 0.06)
    return None


@dataclass(frozen=True, slots=True)
class Outcome:
    requests: int
    failed: int
    cold: int
    """Requests that waited for a start."""
    mean_s: float
    p50_s: float
    p99_s: float


def outcome(path: Path) -> Outcome:
    """Of the records of a run, live or simulated."""
    table = pq.read_table(path, columns=["status", "start", "scheduled_s", "finished_s"])
    good = table.filter(pc.equal(table["status"], 200))
    latencies = pc.subtract(good["finished_s"], good["scheduled_s"])
    return Outcome(
        table.num_rows,
        table.num_rows - good.num_rows,
        pc.sum(pc.not_equal(good["start"], "warm")).as_py() or 0,
        pc.mean(latencies).as_py(),
        *(pc.quantile(latencies, q=[0.5, 0.99]).to_pylist()),
    )


def failures(path: Path) -> list[str]:
    """What the clients of a run were told."""
    records = pq.read_table(path, columns=["status", "error"])
    failed = records.filter(pc.not_equal(records["status"], 200)).to_pylist()
    return [f"{each['status']}: {each['error']}" for each in failed]


def pilotlight(*words: str) -> None:
    command = [sys.executable, "-P", "-m", "pilotlight", *words]
    subprocess.run(command, check=True, cwd=REPOSITORY, stdout=sys.stderr)


@contextmanager
def platform(engine: Engine, folder: Path) -> Iterator[Path]:
    """Its home, with the models declared."""
    home, services = folder / "home", folder / "models.yaml"
    for seed, name in enumerate(MODELS):
        model = folder / "objects" / "models" / name
        if "--llama-server" in engine.flags:
            write_gguf(model / "model.gguf", seed=seed, layers=300)
        else:
            make_model("tiny-llama", model)
    services.write_text("".join(_SERVICE.format(name=name) for name in MODELS))
    try:
        pilotlight("up", "--home", str(home), "--detach", "--pods", "1", "--port", "0",
                   "--objects", str(folder / "objects"), *engine.flags,
                   "--pod-memory", engine.pod_memory)  # fmt: skip
        pilotlight("apply", "--home", str(home), "-f", str(services))
        yield home
    finally:
        pilotlight("down", "--home", str(home))


def play(home: Path, folder: Path, rate: float, duration: str) -> Path:
    """The live run's records."""
    path = folder / "run.parquet"
    trace = f"poisson:rate={rate},duration={duration},names={'/'.join(MODELS)},zipf=1|output=16"
    pilotlight("load", "run", "--home", str(home), "--trace", trace, "--protocol", "openai",
               "--seed", "1", "-o", str(path), "--json")  # fmt: skip
    return path


def simulate(home: Path, run: Path, folder: Path) -> dict[str, Outcome]:
    """The run's arrivals under each rule."""
    found: dict[str, Outcome] = {}
    single = folder / "single.parquet"
    shutil.copy(run, single)
    cluster = yaml.safe_load(run.with_suffix(".cluster.yaml").read_text())
    for path, engines in ((run, None), (single, 1)):
        text = yaml.safe_dump(with_memory(cluster, engines))
        path.with_suffix(".cluster.yaml").write_text(text)
    for name, source, loading in [
        *((policy, run, policy) for policy in POLICIES),
        (LAST_WINS, single, "none"),
    ]:
        out = folder / f"simulated-{len(found)}"
        pilotlight("simulate", "--home", str(home), "--like", str(source), "--loading", loading,
                   "--out", str(out), "--json")  # fmt: skip
        (records,) = out.glob("*.parquet")
        found[f"simulated, {name}"] = outcome(records)
    return found


def with_memory(cluster: dict[str, Any], engines: int | None) -> dict[str, Any]:
    """The cluster whose models take what the largest took: those on disk are known by their files.

    `engines`: room for so many; None: as in the run.
    """
    largest = max(int(model.get("size", 0)) for model in cluster["models"])
    models = [{**model, "memory": largest} for model in cluster["models"]]
    nodes = [
        {**node, "pods": [{**pod, **memory} for pod in node["pods"]]}
        for memory in [{} if engines is None else {"memory": engines * largest}]
        for node in cluster["nodes"]
    ]
    return {**cluster, "models": models, "nodes": nodes}


def table(outcomes: dict[str, Outcome]) -> str:
    """In Markdown, one line each."""
    head = "| | requests | failed | cold | mean s | p50 s | p99 s |\n|---|---|---|---|---|---|---|"
    lines = [
        f"| {name} | {seen.requests} | {seen.failed} | {seen.cold}"
        f" | {seen.mean_s:.2f} | {seen.p50_s:.2f} | {seen.p99_s:.2f} |"
        for name, seen in outcomes.items()
    ]
    return "\n".join([head, *lines])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--duration", default="10m", help="of the run (default: 10m)")
    arguments = parser.parse_args()
    engine = engine_of(dict(os.environ))
    if engine is None:
        parser.error("name an engine: PILOTLIGHT_LLAMA_SERVER or PILOTLIGHT_VLLM_PYTHON")
    with tempfile.TemporaryDirectory(prefix="turns-") as name:
        folder = Path(name)
        with platform(engine, folder) as home:
            run = play(home, folder, engine.rate, arguments.duration)
            failed, live, simulated = failures(run), outcome(run), simulate(home, run, folder)
    print(f"{machine_facts().line()}\n\n{table({'live, predictive': live, **simulated})}\n")
    print(mark_lines([Mark("no request fails", "; ".join(failed) or "none did", not failed)]))


if __name__ == "__main__":
    main()
