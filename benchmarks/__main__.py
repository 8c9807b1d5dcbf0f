"""`python -m benchmarks [WHAT …]`: run benchmarks, print Markdown, save raw samples."""

import argparse
import os
import signal
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import orjson

from benchmarks import batching, decision, eviction
from benchmarks.machine import REPOSITORY, Machine, machine_facts, save
from benchmarks.marks import mark_lines
from benchmarks.proxy import compare, report, routers
from benchmarks.proxy.generator import generator_name
from benchmarks.storage import compare as storage

DEFAULT: Final = ("decision", "proxy", "routers")


@dataclass(frozen=True, slots=True)
class Benchmark:
    """One benchmark of the command line."""

    run: Callable[[argparse.Namespace, Machine], None]
    about: str


def main() -> None:
    arguments = _arguments()
    signal.signal(
        signal.SIGTERM, signal.default_int_handler
    )  # stop the started processes, as on Ctrl-C
    signal.signal(signal.SIGINT, signal.default_int_handler)
    machine = machine_facts()
    print(f"{machine.line()}\n", flush=True)
    for name in arguments.what:
        BENCHMARKS[name].run(arguments, machine)


def _arguments() -> argparse.Namespace:
    names = "\n".join(f"  {name:<10} {each.about}" for name, each in BENCHMARKS.items())
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=__doc__,
        epilog=f"benchmarks:\n{names}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "what",
        nargs="*",
        metavar="WHAT",
        help=f"benchmarks to run, see below (default: {' '.join(DEFAULT)})",
    )
    parser.add_argument(
        "--quick", action="store_true", help="run few short repeats, without slow peers"
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="seed of request bodies and traces (default: 0)"
    )
    parser.add_argument(
        "--repeats",
        type=int,
        help="number of repeats (default: 5; 3 for proxy, batching; 20 for eviction)",
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=2.0,
        help="length of a burst of load in seconds (default: 2)",
    )
    parser.add_argument(
        "--only",
        default="",
        help="run only names with one of these parts, separated by commas: peers (proxy), models "
        "(tiers), policies, parts (gpu: copies, serving, sharing; formats: servers, many, density, "
        "pods, forest)",
    )
    parser.add_argument(
        "--half", choices=("fit", "report"), default="", help="fidelity: of the settings"
    )
    parser.add_argument("--requests", type=int, help="fidelity: at most so many of each setting")
    parser.add_argument("--json", type=Path, help="fidelity: file for all raw samples")
    parser.add_argument(
        "--again", type=Path, help="fidelity: simulate the live runs of such a file anew"
    )
    parser.add_argument(
        "--dry", action="store_true", help="gpu: run on the CPU with tiny models, as a rehearsal"
    )
    parser.add_argument(
        "--docs", action="store_true", help="gpu: write the figures into docs/benchmarks.md"
    )
    arguments = parser.parse_args()
    arguments.what = arguments.what or list(DEFAULT)
    if unknown := set(arguments.what) - set(BENCHMARKS):
        parser.error(
            f"WHAT must be among {', '.join(BENCHMARKS)}, was {', '.join(sorted(unknown))}"
        )
    return arguments


def _decision(arguments: argparse.Namespace, machine: Machine) -> None:
    repeats = arguments.repeats or (1 if arguments.quick else 5)
    print(f"## One routing decision, without network ({repeats} repeats, seed {arguments.seed})\n")
    results = decision.measure(seed=arguments.seed, repeats=repeats)
    print(decision.summary(results), "\n")
    print(decision.summary_in_flight(repeats=3 * repeats), "\n")
    settings = {"seed": arguments.seed, "repeats": repeats}
    _save("decision", machine, settings, [asdict(timed) for timed in results])


def _proxy(arguments: argparse.Namespace, machine: Machine) -> None:
    if len(os.sched_getaffinity(0)) < 2:
        print("## Warm requests: skipped, needs two cores")
        return
    plan = compare.ComparisonPlan(
        seed=arguments.seed,
        repeats=arguments.repeats or (1 if arguments.quick else 3),
        seconds=1.0 if arguments.quick else arguments.seconds,
        is_quick=arguments.quick,
        only=tuple(part for part in arguments.only.lower().split(",") if part),
    )
    print(
        f"## Warm requests, tiny and large V1 bodies, constant response ({plan.repeats} repeats "
        f"of {plan.seconds:g} s, seed {plan.seed}, load by {generator_name()}, Redis on loopback)\n"
    )
    compared = compare.compare(plan)
    print(report.summary(compared))
    content = {
        "skipped": compared.skipped,
        "samples": [asdict(sample) for sample in compared.samples],
    }
    _save("proxy", machine, asdict(plan) | {"generator": generator_name()}, content)


def _routers(arguments: argparse.Namespace, machine: Machine) -> None:
    if len(os.sched_getaffinity(0)) < 2:
        print("## Routers: skipped, needs two cores")
        return
    repeats = arguments.repeats or (1 if arguments.quick else 5)
    print(f"## OpenAI's API through gateways ({repeats} repeats, load by {generator_name()})\n")
    figures, left = routers.compare_routers(repeats, arguments.seconds)
    print(routers.table(figures, left))
    content = {name: asdict(each) for name, each in figures.items()}
    _save("routers", machine, {"repeats": repeats}, content)


def _storage(arguments: argparse.Namespace, machine: Machine) -> None:
    repeats = arguments.repeats or (1 if arguments.quick else 5)
    print(f"## From S3 on loopback to disk, page cache warm at the server ({repeats} repeats)\n")
    samples = storage.compare(repeats=repeats, is_quick=arguments.quick)
    print(storage.summary(samples))
    print(f"\n{mark_lines(storage.marks(samples))}")
    if missing := storage.skipped():
        print(f"\nSkipped: {missing}")
    _save("storage", machine, {"repeats": repeats}, [asdict(sample) for sample in samples])


def _eviction(arguments: argparse.Namespace, machine: Machine) -> None:
    repeats = arguments.repeats or eviction.SEEDS
    print(
        f"## Evictions, simulated: 8 models, memory for half, {eviction.REQUESTS} requests"
        f" ({repeats} traces, seed {arguments.seed})\n"
    )
    results = eviction.measure(seed=arguments.seed, repeats=repeats)
    print(eviction.summary(results))
    settings = {"seed": arguments.seed, "repeats": repeats}
    _save("eviction", machine, settings, [asdict(each) for each in results])


def _tiers(arguments: argparse.Namespace, machine: Machine) -> None:
    from benchmarks.tiers import measure, models, report  # imports torch

    repeats = arguments.repeats or (1 if arguments.quick else 5)
    print(f"## Cold starts on the CPU, S3 on loopback ({repeats} repeats)\n")
    wanted = arguments.only.lower().split(",")
    chosen = [name for name in models.MODELS if any(part in name for part in wanted)]
    chosen = chosen[:1] if arguments.quick else chosen
    results, skipped = measure.measure(repeats=repeats, models=chosen)
    print(report.summary(results))
    print(f"\n{mark_lines(report.marks(results))}")
    for line in sorted(set(skipped)):
        print(f"\nSkipped: {line}")
    _save("tiers", machine, {"repeats": repeats}, [asdict(each) for each in results])


def _batching(arguments: argparse.Namespace, machine: Machine) -> None:
    if len(os.sched_getaffinity(0)) < 2:
        print("## Batching: skipped, needs two cores")
        return
    plan = batching.Plan(
        repeats=arguments.repeats or (1 if arguments.quick else 3),
        seconds=arguments.seconds if arguments.quick else max(arguments.seconds, 5.0),
    )
    print(
        f"## One pod with batching, one text per request ({plan.repeats} repeats of "
        f"{plan.seconds:g} s and more, load by {generator_name()}, one core for the server)\n"
    )
    samples = batching.measure(plan)
    print(batching.summary(samples))
    print(f"\n{mark_lines(batching.marks(samples))}")
    settings = asdict(plan) | {"generator": generator_name(), "text": batching.TEXT}
    _save("batching", machine, settings, [asdict(sample) for sample in samples])


def _formats(arguments: argparse.Namespace, machine: Machine) -> None:
    if len(os.sched_getaffinity(0)) < 2:
        print("## Formats: skipped, needs two cores")
        return
    parts: dict[str, Callable[[argparse.Namespace, Machine], None]] = {
        "servers": _formats_servers,
        "many": _formats_many,
        "density": _formats_density,
        "pods": _formats_pods,
        "forest": _formats_forest,
    }
    wanted = [part for part in arguments.only.lower().split(",") if part] or list(parts)
    for name, run in parts.items():
        if any(part in name for part in wanted):
            run(arguments, machine)


def _formats_servers(arguments: argparse.Namespace, machine: Machine) -> None:
    from benchmarks.formats import measure

    repeats = arguments.repeats or (1 if arguments.quick else 3)
    print(
        f"## Small models of KServe's formats at {measure.CLIENTS} clients ({repeats} repeats of"
        f" {arguments.seconds:g} s, load by {generator_name()}, one core for the servers)\n"
    )
    measured = measure.measure(repeats=repeats, seconds=arguments.seconds)
    print(measure.summary(measured))
    print(f"\n{mark_lines(measure.marks(measured))}")
    settings = {"repeats": repeats, "seconds": arguments.seconds, "generator": generator_name()}
    _save("formats", machine, settings, asdict(measured))


def _formats_many(arguments: argparse.Namespace, machine: Machine) -> None:
    from benchmarks.formats import many_models

    models = 20 if arguments.quick else 200
    many = many_models.measure(models)
    print(f"\n{many_models.summary(many)}")
    _save("many-models", machine, {"models": models}, [asdict(each) for each in many])


def _formats_density(arguments: argparse.Namespace, machine: Machine) -> None:
    from benchmarks.formats import density

    models, warm = (30, 10) if arguments.quick else (1000, 200)
    print("## Density of a pod\n")
    measured = density.measure(models=models, warm=warm)
    print(density.summary(measured))
    print(f"\n{mark_lines(density.marks(measured))}")
    _save("density", machine, {"models": models, "warm": warm}, asdict(measured))


def _formats_forest(arguments: argparse.Namespace, machine: Machine) -> None:
    from benchmarks.formats import forest

    trees, repeats = (80, 2) if arguments.quick else (800, arguments.repeats or 5)
    print("## Load of a large forest\n")
    measured = forest.measure(trees=trees, repeats=repeats, seed=arguments.seed)
    print(forest.summary(measured))
    print(f"\n{mark_lines(forest.marks(measured))}")
    _save("forest", machine, {"trees": trees, "repeats": repeats}, asdict(measured))


def _formats_pods(arguments: argparse.Namespace, machine: Machine) -> None:
    from benchmarks.formats import many_pods

    models, seconds = (100, 5.0) if arguments.quick else (10_000, 180.0)
    print("## Many declared models on several pods\n")
    measured = many_pods.measure(models=models, seconds=seconds, seed=arguments.seed)
    print(many_pods.summary(measured))
    print(f"\n{mark_lines(many_pods.marks(measured))}")
    settings = {"models": models, "seconds": seconds, "seed": arguments.seed}
    _save("many-pods", machine, settings, asdict(measured))


def _gpu(arguments: argparse.Namespace, machine: Machine) -> None:
    from benchmarks.gpu import command  # imports torch

    command.run(arguments, machine)


def _fidelity(arguments: argparse.Namespace, machine: Machine) -> None:
    from benchmarks.fidelity import compare  # pyarrow is an extra

    print("## Live platforms and their simulation\n", flush=True)

    def keep() -> None:
        if arguments.json is not None:
            arguments.json.write_bytes(orjson.dumps(document))

    if arguments.again is not None:
        document = compare.read(arguments.again)
        compare.again(document, arguments.only)
        keep()
    else:
        document = {"machine": asdict(machine)}
        settings = compare.chosen(arguments.half, arguments.only)
        compare.play(document, settings, arguments.requests, keep)
    print("\n".join(compare.summary(compare.pairs(document))))


def _simulator(arguments: argparse.Namespace, machine: Machine) -> None:
    from benchmarks import simulator  # pyarrow is an extra

    repeats = arguments.repeats or (1 if arguments.quick else 3)
    print(f"## The simulator, CPU time ({repeats} repeats, seed {arguments.seed})\n")
    results = simulator.measure(
        seed=arguments.seed, repeats=repeats, is_quick=arguments.quick, only=arguments.only
    )
    print(simulator.summary(results))
    settings = {"seed": arguments.seed, "repeats": repeats}
    _save("simulator", machine, settings, [asdict(each) for each in results])


def _placement(arguments: argparse.Namespace, machine: Machine) -> None:
    from benchmarks import placement  # imports the solver

    problems = arguments.repeats or (5 if arguments.quick else placement.PROBLEMS)
    print(
        f"## Planning: {problems} problems of 8 models on 8 GPUs ({placement.source()}), and 100 "
        f"on 100 (seed {arguments.seed}, CPU time)\n"
    )
    found = placement.measure(seed=arguments.seed, problems=problems, is_quick=arguments.quick)
    print(placement.summary(found))
    print(f"\n{mark_lines(placement.marks(found))}")
    settings = {"seed": arguments.seed, "problems": problems, "source": placement.source()}
    _save("placement", machine, settings, [asdict(each) for each in found])


def _overload(arguments: argparse.Namespace, machine: Machine) -> None:
    if len(os.sched_getaffinity(0)) < 2:
        print("## Overload: skipped, needs two cores")
        return
    from benchmarks.overload import measure, report

    for layers in measure.LAYERS:
        plan = measure.Plan(
            seed=arguments.seed,
            repeats=arguments.repeats or (1 if arguments.quick else 3),
            seconds=max(arguments.seconds, 4.0 if arguments.quick else 8.0),
            layers=layers,
        )
        print(
            f"## Overload: a gateway and a pod, four tenants, {layers} layers ({plan.repeats}"
            f" repeats of {plan.seconds:g} s, seed {plan.seed}; the pod on one core, all else on"
            " the other)\n"
        )
        measured = measure.measure(plan)
        print(report.summary(measured))
        print(f"\n{mark_lines(report.marks(measured))}")
        _save(f"overload-{layers}", machine, asdict(plan), asdict(measured))


def _clients(arguments: argparse.Namespace, machine: Machine) -> None:
    if len(os.sched_getaffinity(0)) < 2:
        print("## Many clients: skipped, needs two cores")
        return
    from benchmarks import many_clients

    repeats = arguments.repeats or (2 if arguments.quick else 10)
    seconds = arguments.seconds if arguments.quick else max(arguments.seconds, 5.0)
    print(
        f"## {many_clients.CLIENTS} keep-alive clients at a gateway on one core, tiny bodies, and"
        f" new clients beside them ({repeats} bursts of {seconds:g} s, load by our own client)\n"
    )
    bursts = many_clients.measure(repeats=repeats, seconds=seconds)
    print(many_clients.summary(bursts))
    print(f"\n{mark_lines(many_clients.marks(bursts))}")
    settings = {"repeats": repeats, "seconds": seconds, "clients": many_clients.CLIENTS}
    _save("clients", machine, settings, [asdict(each) for each in bursts])


def _save(name: str, machine: Machine, settings: dict[str, Any], samples: Any) -> None:
    path = save(name, machine, settings, samples)
    print(f"\nRaw samples: {path.relative_to(REPOSITORY)}\n", flush=True)


BENCHMARKS: Final[Mapping[str, Benchmark]] = {
    "decision": Benchmark(_decision, "one routing decision, without network"),
    "proxy": Benchmark(_proxy, "the gateway against other gateways (make bench-peers)"),
    "routers": Benchmark(_routers, "OpenAI's API and its streams through gateways and routers"),
    "clients": Benchmark(_clients, "the gateway with 512 busy clients and new ones beside them"),
    "storage": Benchmark(_storage, "from S3 on loopback to disk, against boto3"),
    "tiers": Benchmark(_tiers, "cold starts of T5 from every tier, against other loaders"),
    "eviction": Benchmark(_eviction, "loads by eviction rule (simulated)"),
    "batching": Benchmark(_batching, "a pod that batches against KServe's ModelServer"),
    "formats": Benchmark(_formats, "small models beside KServe's own servers and MLServer"),
    "fidelity": Benchmark(_fidelity, "latencies of simulated runs against live ones"),
    "overload": Benchmark(_overload, "goodput over the capacity, and tenants beside a greedy one"),
    "simulator": Benchmark(_simulator, "requests per CPU second, with real policies (simulated)"),
    "placement": Benchmark(_placement, "planning times, optimality, goodput by planner"),
    "gpu": Benchmark(_gpu, "copies to a GPU, cold starts, serving during loads, memory after them"),
}


if __name__ == "__main__":
    main()
