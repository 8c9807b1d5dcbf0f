"""Tensors from one pod's process to another's: figure 3 of Zhang et al. 2025, live.

32 torch tensors of (128, 768), and one of 64 MB, from the step that made them to the next: kept in
the same pod, mapped, sent as raw bytes, or pickled, in turns. Both processes' CPU time is measured
as well: it depends less on other work of the machine.
"""

import asyncio
import pickle
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

import numpy as np
import orjson
import torch
import uvloop

from benchmarks.machine import REPOSITORY, machine_facts, save
from benchmarks.marks import Mark, mark_lines
from benchmarks.transfer_pod import (
    BUDGET_BYTES,
    COUNT,
    LARGE_BYTES,
    NAMESPACE,
    RUN,
    SHAPE,
    embeddings,
    kept,
    large,
)
from common.inference_protocol.bodies import decode_request
from common.pod_secret import PodSecret
from common.tls import PartTls
from runtime.inference_request import parse_request_head
from runtime.serving.repository import ModelCatalog
from runtime.serving.tensor_exchange import BlockClient, StepTensors, TensorExchange
from runtime.serving.tensor_store import TensorStore
from runtime.tiers.host_folder import HostFolder, HostSockets

ROUNDS: Final = 40
WARM_UP: Final = 5
HERE: Final = "127.0.0.1:1"
HEAD: Final = parse_request_head(f"{NAMESPACE}~next", {"x-pilotlight-run": RUN})


@dataclass(frozen=True, slots=True)
class Took:
    """Seconds of one transfer; CPU time is of both processes."""

    wall_s: float
    cpu_s: float

    def __add__(self, other: "Took") -> "Took":
        return Took(self.wall_s + other.wall_s, self.cpu_s + other.cpu_s)


class _EveryPod:
    """In place of the registry's list of pods."""

    async def is_pod(self, address: str | None) -> bool:
        return address is not None


class Transfers:
    """The pod that needs the tensors, and requests to the one that keeps them."""

    def __init__(self, address: str, process_id: int, sockets: HostSockets, threads: Any) -> None:
        secret = PodSecret()
        self._address = address
        self._clock = (~process_id << 3) | 2
        """The CPU clock of another process: clock_getcpuclockid(3)."""
        blocks = BlockClient(sockets, secret, threads)
        self._bytes = TensorExchange(secret, PartTls())
        self._memory = TensorExchange(secret, PartTls(), blocks)
        self._store = TensorStore(BUDGET_BYTES)
        catalog = cast("ModelCatalog", _EveryPod())
        self._raw = StepTensors(HERE, self._store, self._bytes, catalog)
        self._shared = StepTensors(HERE, self._store, self._memory, catalog)
        self._pickled_bytes: dict[str, int] = {}

    def close(self) -> None:
        self._bytes.close()
        self._memory.close()

    async def same_pod(self, which: str, tensors: list[torch.Tensor]) -> tuple[Took, Took]:
        """Time to keep, and time to hand over."""
        self._store.drop(NAMESPACE, RUN)
        began = self._now()
        identities = kept(self._store, tensors)
        keep = self._since(began)
        return keep, await self._find(self._raw, HERE, identities, which)

    async def between_pods(self, which: str, *, shares: bool) -> tuple[Took, Took]:
        memory, steps = ("shared", self._shared) if shares else ("plain", self._raw)
        answer = await self._get(f"/keep/{memory}/{which}")
        keep = Took(answer["wall_s"], answer["cpu_s"])
        return keep, await self._find(steps, self._address, answer["kept"], which)

    async def pickled(self, which: str) -> tuple[Took, Took]:
        if which not in self._pickled_bytes:
            tensors = large() if which == "large" else embeddings()
            self._pickled_bytes[which] = len(pickle.dumps(tensors, protocol=5))
        began = self._now()
        sizes = [self._pickled_bytes[which]]
        (content,) = await self._bytes.fetch_bytes(self._address, f"/pickle/{which}", sizes)
        tensors = pickle.loads(content)
        took = self._since(began)
        _check(tensors, which)
        return Took(0.0, 0.0), took

    async def _find(
        self, steps: StepTensors, address: str, identities: Sequence[str], which: str
    ) -> Took:
        shape = [LARGE_BYTES // 4] if which == "large" else list(SHAPE)
        entries = [
            {
                "name": f"x{number}",
                "datatype": "FP32",
                "shape": shape,
                "parameters": {"kept_tensor": identity, "kept_at": address},
            }
            for number, identity in enumerate(identities)
        ]
        body = orjson.dumps({"inputs": entries})
        began = self._now()
        found = await steps.find_inputs(HEAD, body)
        request = decode_request(body, None, found)
        tensors = [torch.from_numpy(tensor.data) for tensor in request.inputs]
        took = self._since(began)
        _check(tensors, which)
        return took

    async def _get(self, path: str) -> Any:
        reader, writer = await asyncio.open_connection(*self._address.split(":"))
        writer.write(f"GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n".encode())
        content = await reader.read()
        writer.close()
        return orjson.loads(content.partition(b"\r\n\r\n")[2])

    def _now(self) -> Took:
        return Took(time.perf_counter(), time.process_time() + time.clock_gettime(self._clock))

    def _since(self, began: Took) -> Took:
        now = self._now()
        return Took(now.wall_s - began.wall_s, now.cpu_s - began.cpu_s)


def _check(tensors: Sequence[torch.Tensor], which: str) -> None:
    expected = EXPECTED[which]
    if [float(tensor[-1].sum()) for tensor in tensors] != expected:
        raise RuntimeError(f"the tensors of {which!r} are not those that were sent")


EXPECTED: Final = {
    "embeddings": [float(tensor[-1].sum()) for tensor in embeddings()],
    "large": [float(tensor[-1].sum()) for tensor in large()],
}


@contextmanager
def other_pod(folder: Path) -> Iterator[tuple[str, int]]:
    """The address and the process of a pod that keeps tensors."""
    command = [sys.executable, "-m", "benchmarks.transfer_pod", str(folder)]
    with subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            yield orjson.loads(process.stdout.readline())["address"], process.pid
        finally:
            process.terminate()


def memcpy(source: np.ndarray[Any, Any], target: np.ndarray[Any, Any]) -> Took:
    """Between memory that is in place."""
    began = Took(time.perf_counter(), time.process_time())
    np.copyto(target, source)
    return Took(time.perf_counter() - began.wall_s, time.process_time() - began.cpu_s)


async def measure(folder: Path) -> dict[str, list[tuple[Took, Took]]]:
    """Per way and tensors, each round's time to keep and to hand over."""
    made = {"embeddings": embeddings(), "large": large()}
    source, target = np.ones(LARGE_BYTES, np.uint8), np.ones(LARGE_BYTES, np.uint8)
    found: dict[str, list[tuple[Took, Took]]] = {}
    async with AsyncExitStack() as stack:
        threads = stack.enter_context(ThreadPoolExecutor(2))
        address, process_id = stack.enter_context(other_pod(folder))
        sockets = HostSockets(HostFolder(folder, 0))
        transfers = Transfers(address, process_id, sockets, threads)
        stack.callback(transfers.close)
        for number in range(WARM_UP + ROUNDS):
            if number == WARM_UP:
                found.clear()
            for which in ("embeddings", "large"):
                for way, pair in (
                    ("same pod", await transfers.same_pod(which, made[which])),
                    ("shared memory", await transfers.between_pods(which, shares=True)),
                    ("raw bytes", await transfers.between_pods(which, shares=False)),
                    ("pickle", await transfers.pickled(which)),
                ):
                    found.setdefault(f"{which}: {way}", []).append(pair)
            copied = memcpy(source, target)
            found.setdefault("memcpy", []).append((Took(0.0, 0.0), copied))
    return found


def report(found: dict[str, list[tuple[Took, Took]]]) -> str:
    """Tables and marks."""
    lines = []
    for which, title in (
        ("embeddings", f"{COUNT} tensors of {SHAPE}, float32"),
        ("large", f"one tensor of {LARGE_BYTES >> 20} MiB"),
    ):
        lines += [
            f"\n{title}, p50 of {ROUNDS} rounds\n",
            "| | keep ms | hand over ms | together, of pickle's % | CPU ms, both processes"
            " | of pickle's % |",
            "|---|---|---|---|---|---|",
        ]
        for way in ("same pod", "shared memory", "raw bytes", "pickle"):
            rounds = found[f"{which}: {way}"]
            keep, over = (_p50_ms([pair[at].wall_s for pair in rounds]) for at in (0, 1))
            cpu = _p50_ms([sum(pair, Took(0, 0)).cpu_s for pair in rounds])
            wall_ratio, cpu_ratio = _ratios(found, f"{which}: {way}", f"{which}: pickle")
            lines.append(
                f"| {way} | {keep:.2f} | {over:.2f} | {100 * wall_ratio:.0f} |"
                f" {cpu:.2f} | {100 * cpu_ratio:.0f} |"
            )
    return "\n".join([*lines, "", mark_lines(_marks(found))])


def _marks(found: dict[str, list[tuple[Took, Took]]]) -> list[Mark]:
    wall, cpu = _ratios(found, "embeddings: pickle", "embeddings: raw bytes")
    same = [over for _, over in found["embeddings: same pod"]]
    one_ms, one_cpu_ms = (
        _p50_ms([over.wall_s for over in same]) / COUNT,
        _p50_ms([over.cpu_s for over in same]) / COUNT,
    )
    handed = [over for _, over in found["large: shared memory"]]
    copies = [over for _, over in found["memcpy"]]
    pairs = list(zip(copies, handed, strict=True))
    rate = float(np.median([copy.wall_s / over.wall_s for copy, over in pairs]))
    rate_cpu = float(np.median([copy.cpu_s / over.cpu_s for copy, over in pairs]))
    with_keep, _ = _ratios(found, "memcpy", "large: shared memory")
    return [
        Mark(
            "raw bytes at least twice as fast as pickle",
            f"{wall:.1f} times ({cpu:.1f} by CPU time)",
            min(wall, cpu) >= 2,
        ),
        Mark(
            "same pod below 0.1 ms of CPU time a tensor",
            f"{one_cpu_ms:.3f} ms (elapsed: {one_ms:.3f} ms)",
            one_cpu_ms < 0.1,
        ),
        Mark(
            "shared memory hands over 64 MiB at 70 % of memcpy's rate or more",
            f"{100 * rate:.0f} % ({100 * rate_cpu:.0f} % by CPU time; {100 * with_keep:.0f} % with"
            " the copy when it is kept)",
            min(rate, rate_cpu) >= 0.7,
        ),
    ]


def _ratios(
    found: dict[str, list[tuple[Took, Took]]], first: str, second: str
) -> tuple[float, float]:
    """Medians over rounds of the first's part of the second: time, and CPU time."""
    pairs = [
        (sum(one, Took(0, 0)), sum(other, Took(0, 0)))
        for one, other in zip(found[first], found[second], strict=True)
    ]
    return (
        float(np.median([one.wall_s / other.wall_s for one, other in pairs])),
        float(np.median([one.cpu_s / other.cpu_s for one, other in pairs])),
    )


def _p50_ms(values_s: Sequence[float]) -> float:
    return 1e3 * float(np.median(values_s))


def main() -> None:
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", "The given NumPy array is not writable")  # nobody writes
    machine = machine_facts()
    print(f"{machine.line()}")
    with (
        tempfile.TemporaryDirectory() as folder,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        found = runner.run(measure(Path(folder) / "node"))
    print(report(found))
    print(f"\nsamples: {save('workflow-transfers', machine, {'rounds': ROUNDS}, found)}")


if __name__ == "__main__":
    main()
