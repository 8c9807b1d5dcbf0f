"""A warm step of a workflow beside a step of Ray Serve's composition, in turns and in one run.

For each of Ray's two configurations: direct requests and chains of 1, 3 and 6 steps by one client,
round after round to one system and then to the other. Steps are timed by the code that calls the
model, the rest by the client.
"""

import tempfile
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
import orjson

from benchmarks.composition.systems import (
    DIRECT,
    OURS,
    ChainSystem,
    chain_body,
    make_program,
    start_pilotlight,
    start_ray,
)
from benchmarks.machine import machine_facts, save
from benchmarks.marks import Mark, mark_lines
from benchmarks.peers import peers_python

ROUNDS: Final = 60
WARM_UP: Final = 10
CHAINS: Final = (1, 3, 6)
DIRECTS: Final = 5
"""Direct requests in a round: as many as a chain of 6 steps gives step times."""
SKIPPED: Final = "comparison with Ray Serve skipped: make bench-peers installs it in .venv-peers"


@dataclass(slots=True)
class Samples:
    """Times of one system in seconds."""

    direct_s: list[float] = field(default_factory=list)
    steps_s: list[float] = field(default_factory=list)
    chains_s: dict[int, list[float]] = field(
        default_factory=lambda: {count: [] for count in CHAINS}
    )
    cpu_s: float = 0.0
    """CPU time of the system's processes during the chains of most steps."""


def main() -> None:
    if peers_python() is None:
        print(SKIPPED)
        return
    machine = machine_facts()
    print(f"{machine.line()}\n", flush=True)
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        program = make_program(folder / "model" / "model.pt2")
        ours = start_pilotlight(stack, folder / "ours", program)
        found = []
        for tuned in (False, True):
            with ExitStack() as ray_stack:
                place = folder / ("t" if tuned else "d")  # short: it is part of sockets' paths
                ray = start_ray(ray_stack, place, program, tuned=tuned)
                samples = measure((ours, ray))
            print(report(samples), flush=True)
            found.append({system: asdict(each) for system, each in samples.items()})
    settings = {"rounds": ROUNDS, "warm_up": WARM_UP, "directs": DIRECTS}
    print(f"samples: {save('composition', machine, settings, found)}")


def measure(systems: tuple[ChainSystem, ...]) -> dict[str, Samples]:
    """All rounds, of the systems in turns. Raises RuntimeError if their results differ."""
    samples = {system.name: Samples() for system in systems}
    for number in range(WARM_UP + ROUNDS):
        if number == WARM_UP:
            samples = {system.name: Samples() for system in systems}
        rows = [_round(system, samples[system.name]) for system in systems]
        if not all(np.allclose(row, rows[0], atol=1e-5) for row in rows):
            raise RuntimeError(f"the systems' results differ: {rows}")
    return samples


def _round(system: ChainSystem, samples: Samples) -> list[float]:
    """One turn of a system; the row that the longest chain returned."""
    for _ in range(DIRECTS):
        began_s = time.perf_counter()
        system.post(system.direct_path, DIRECT)
        samples.direct_s.append(time.perf_counter() - began_s)
    for count in CHAINS:
        body, used_s = chain_body(count), system.cpu_s()
        began_s = time.perf_counter()
        response = system.post(system.chain_path, body)
        samples.chains_s[count].append(time.perf_counter() - began_s)
        used_s = system.cpu_s() - used_s
        result = system.read_result(orjson.loads(response))
        samples.steps_s += result.steps_s if count == CHAINS[-1] else []
        samples.cpu_s += used_s if count == CHAINS[-1] else 0.0
    return result.row


def report(samples: dict[str, Samples]) -> str:
    """A table of p50 and p99 in ms, and whether a step of ours takes less."""
    heads = ["direct request", "step", "step - direct"]
    heads += [f"{count} step{'s' if count > 1 else ''}" for count in CHAINS]
    lines = [f"| p50 / p99, ms | {' | '.join(heads)} | CPU per run of {CHAINS[-1]} |"]
    lines.append("|---" * (len(heads) + 2) + "|")
    for system, each in samples.items():
        direct, step = quantiles_ms(each.direct_s), quantiles_ms(each.steps_s)
        cells = [direct, step, (step[0] - direct[0], step[1] - direct[1])]
        cells += [quantiles_ms(values) for values in each.chains_s.values()]
        shown = " | ".join(f"{p50:.1f} / {p99:.1f}" for p50, p99 in cells)
        cpu_ms = 1e3 * each.cpu_s / len(each.chains_s[CHAINS[-1]])
        lines.append(f"| {system} | {shown} | {cpu_ms:.0f} |")
    return "\n".join([*lines, "", mark_lines(marks(samples)), ""])


def marks(samples: dict[str, Samples]) -> list[Mark]:
    """Whether ours takes less: a step, and chains from end to end."""
    (other,) = samples.keys() - {OURS}
    pairs = [("a warm step", samples[OURS].steps_s, samples[other].steps_s)]
    pairs += [
        (f"a chain of {count}", samples[OURS].chains_s[count], samples[other].chains_s[count])
        for count in CHAINS
    ]
    return [
        Mark(
            f"{what} ahead of {other}, {name}", f"{mine:.1f} against {theirs:.1f} ms", mine < theirs
        )
        for what, my_s, their_s in pairs
        for name, mine, theirs in zip(
            ("p50", "p99"), quantiles_ms(my_s), quantiles_ms(their_s), strict=True
        )
    ]


def quantiles_ms(values_s: list[float]) -> tuple[float, float]:
    p50, p99 = np.quantile(values_s, [0.5, 0.99]).tolist()
    return 1e3 * p50, 1e3 * p99


if __name__ == "__main__":
    main()
