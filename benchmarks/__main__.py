"""`python -m benchmarks [decision] [proxy]`: run benchmarks, print Markdown, keep raw samples."""

from __future__ import annotations

import argparse
import os
import signal
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from benchmarks import decision
from benchmarks.machine import REPOSITORY, machine_facts, save
from benchmarks.proxy import compare, report
from benchmarks.proxy.generator import generator_name

if TYPE_CHECKING:
    from benchmarks.machine import Machine


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


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "what", nargs="*", default=["decision", "proxy"], help="decision, proxy; default: both"
    )
    parser.add_argument("--quick", action="store_true", help="one short repeat, no slow peers")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--repeats", type=int, help="default: 5 for decision, 3 for proxy")
    parser.add_argument("--seconds", type=float, default=2.0, help="length of a burst of load")
    parser.add_argument("--only", default="", help="parts of peers' names, separated by commas")
    arguments = parser.parse_args()
    if unknown := set(arguments.what) - {"decision", "proxy"}:
        parser.error(f"the benchmarks are decision and proxy, seen {', '.join(sorted(unknown))}")
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


def _save(name: str, machine: Machine, settings: dict[str, Any], samples: Any) -> None:
    path = save(name, machine, settings, samples)
    print(f"\nRaw samples: {path.relative_to(REPOSITORY)}\n", flush=True)


if __name__ == "__main__":
    main()
