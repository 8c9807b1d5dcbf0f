"""`python -m benchmarks [WHAT …]`: run benchmarks, print Markdown, keep raw samples."""

from __future__ import annotations

import argparse
import os
import signal
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from benchmarks import batching, decision, eviction
from benchmarks.machine import REPOSITORY, machine_facts, save
from benchmarks.proxy import compare, report
from benchmarks.proxy.generator import generator_name
from benchmarks.storage import compare as storage

if TYPE_CHECKING:
    from benchmarks.machine import Machine

BENCHMARKS = ("decision", "proxy", "storage", "eviction", "tiers", "batching", "simulator")


def main() -> None:
    """Run what the arguments name."""
    arguments = _arguments()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # end what was started, as on Ctrl-C
    signal.signal(signal.SIGINT, signal.default_int_handler)
    machine = machine_facts()
    print(f"{machine.line()}\n")
    if "decision" in arguments.what:
        _decision(arguments, machine)
    if "proxy" in arguments.what:
        _proxy(arguments, machine)
    if "storage" in arguments.what:
        _storage(arguments, machine)
    if "eviction" in arguments.what:
        _eviction(arguments, machine)
    if "tiers" in arguments.what:
        _tiers(arguments, machine)
    if "batching" in arguments.what:
        _batching(arguments, machine)
    if "simulator" in arguments.what:
        _simulator(arguments, machine)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "what", nargs="*", default=["decision", "proxy"], help=f"{', '.join(BENCHMARKS)}"
    )
    parser.add_argument("--quick", action="store_true", help="one short repeat, no slow peers")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--repeats", type=int, help="default: 5; 3 for proxy, 20 for eviction")
    parser.add_argument("--seconds", type=float, default=2.0, help="length of a burst of load")
    parser.add_argument(
        "--only",
        default="",
        help="parts of names, separated by commas: of peers (proxy), of models (tiers)",
    )
    arguments = parser.parse_args()
    if unknown := set(arguments.what) - set(BENCHMARKS):
        parser.error(
            f"the benchmarks are {', '.join(BENCHMARKS)}, seen {', '.join(sorted(unknown))}"
        )
    return arguments


def _decision(arguments: argparse.Namespace, machine: Machine) -> None:
    repeats = arguments.repeats or (1 if arguments.quick else 5)
    print(f"## One routing decision, without network ({repeats} repeats, seed {arguments.seed})\n")
    results = decision.measure(seed=arguments.seed, repeats=repeats)
    print(decision.summary(results))
    settings = {"seed": arguments.seed, "repeats": repeats}
    _save("decision", machine, settings, [asdict(timed) for timed in results])


def _proxy(arguments: argparse.Namespace, machine: Machine) -> None:
    if len(os.sched_getaffinity(0)) < 2:
        print("## Warm requests: skipped, two cores are needed")
        return
    plan = compare.Plan(
        seed=arguments.seed,
        repeats=arguments.repeats or (1 if arguments.quick else 3),
        seconds=1.0 if arguments.quick else arguments.seconds,
        is_quick=arguments.quick,
        only=tuple(part for part in arguments.only.lower().split(",") if part),
    )
    print(
        f"## Warm requests, a tiny V1 body or a large one, constant answer ({plan.repeats} repeats "
        f"of {plan.seconds:g} s, seed {plan.seed}, load by {generator_name()}, Redis on loopback)\n"
    )
    compared = compare.compare(plan)
    print(report.summary(compared))
    content = {
        "skipped": compared.skipped,
        "samples": [asdict(sample) for sample in compared.samples],
    }
    _save("proxy", machine, asdict(plan) | {"generator": generator_name()}, content)


def _storage(arguments: argparse.Namespace, machine: Machine) -> None:
    repeats = arguments.repeats or (1 if arguments.quick else 5)
    print(f"## From S3 on loopback to disk, page cache warm at the server ({repeats} repeats)\n")
    samples = storage.compare(repeats=repeats, is_quick=arguments.quick)
    print(storage.summary(samples))
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
    from benchmarks import tiers  # imports torch

    repeats = arguments.repeats or (1 if arguments.quick else 5)
    print(f"## Cold starts on the CPU ({repeats} repeats)\n")
    wanted = arguments.only.lower().split(",")
    models = [name for name in tiers.MODELS if any(part in name for part in wanted)]
    models = models[:1] if arguments.quick else models
    results, skipped = tiers.measure(repeats=repeats, models=models)
    print(tiers.summary(results))
    for line in sorted(set(skipped)):
        print(f"\nSkipped: {line}")
    _save("tiers", machine, {"repeats": repeats}, [asdict(each) for each in results])


def _batching(arguments: argparse.Namespace, machine: Machine) -> None:
    if len(os.sched_getaffinity(0)) < 2:
        print("## Batching: skipped, two cores are needed")
        return
    plan = batching.Plan(
        repeats=arguments.repeats or (1 if arguments.quick else 3),
        seconds=max(arguments.seconds, 5.0),
    )
    print(
        f"## One pod with batching, one text per request ({plan.repeats} repeats of "
        f"{plan.seconds:g} s and more, load by {generator_name()}, one core for the server)\n"
    )
    samples = batching.measure(plan)
    print(batching.summary(samples))
    settings = asdict(plan) | {"generator": generator_name(), "text": batching.TEXT}
    _save("batching", machine, settings, [asdict(sample) for sample in samples])


def _simulator(arguments: argparse.Namespace, machine: Machine) -> None:
    from benchmarks import simulator  # pyarrow is an extra

    repeats = arguments.repeats or (1 if arguments.quick else 3)
    print(f"## The simulator, one core, CPU time ({repeats} repeats, seed {arguments.seed})\n")
    results = simulator.measure(seed=arguments.seed, repeats=repeats, is_quick=arguments.quick)
    print(simulator.summary(results))
    settings = {"seed": arguments.seed, "repeats": repeats}
    _save("simulator", machine, settings, [asdict(each) for each in results])


def _save(name: str, machine: Machine, settings: dict[str, Any], samples: Any) -> None:
    path = save(name, machine, settings, samples)
    print(f"\nRaw samples: {path.relative_to(REPOSITORY)}\n", flush=True)


if __name__ == "__main__":
    main()
