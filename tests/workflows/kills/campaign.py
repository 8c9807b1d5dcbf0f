"""Clients run workflows while parts of the cluster are killed: no accepted run may be lost."""

import random
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Final

import httpx

from tests import servers
from tests.workflows.kills.cluster import TEXTS, VICTIMS, KillCluster

CLIENTS: Final = 4
_RUN_LIMIT_S: Final = 300.0
_POLL_S: Final = 0.05


class RunLostError(Exception):
    """A run was refused for good, or did not end."""


@dataclass
class KillReport:
    """What clients and the cluster have seen."""

    kills: Mapping[str, int] = field(default_factory=dict)
    accepted: int = 0
    succeeded: int = 0
    resumed: int = 0
    """Runs that another execution of their code has ended."""
    repeated: int = 0
    """Steps that were sent more than once."""
    made_again: int = 0
    """Steps that ran again since their outputs were lost with a pod."""
    pod_work: Mapping[str, int] = field(default_factory=dict)
    """Counters of all pods, without what they counted in the moment before a kill."""
    violations: list[str] = field(default_factory=list)


class KillCampaign:
    """Runs of one workflow by several clients, and kills one after the other."""

    def __init__(self, cluster: KillCluster, rng: random.Random) -> None:
        self._cluster = cluster
        self._rng = rng
        self._report = KillReport()
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._number = 0
        self._under_way: set[int] = set()
        self._had_runner_killed: set[int] = set()

    def run(
        self, kills: int, *, victims: Sequence[str] = (), limit_s: float = 3600.0
    ) -> KillReport:
        """Kill so many parts, drawn or in turn, under load; then look for what is left."""
        began_s = time.monotonic()
        with ThreadPoolExecutor(CLIENTS) as threads:
            clients = [threads.submit(self._run_until_stopped) for _ in range(CLIENTS)]
            try:
                for number in range(kills):
                    if time.monotonic() - began_s > limit_s:
                        break
                    ended = self._report.succeeded
                    self._kill(victims[number % len(victims)] if victims else self._draw())
                    servers.wait_until(
                        lambda before=ended: (
                            self._report.succeeded > before  # type: ignore[misc]
                            or self._report.violations
                        ),
                        what="a run ended after the kill",
                    )
            finally:
                self._stop.set()
            for client in clients:
                client.result()
        self._report.kills = dict(self._cluster.kills)
        for pod in self._cluster.pods:
            self._cluster.note_work(pod)
        self._report.pod_work = dict(self._cluster.pod_work)
        try:
            servers.wait_until(lambda: not self._cluster.leaks(), what="no leak", timeout_s=60)
        except TimeoutError:
            self._report.violations += self._cluster.leaks()
        return self._report

    def _draw(self) -> str:
        return self._rng.choice(VICTIMS)

    def _kill(self, victim: str) -> None:
        """A runner dies with each run once at most: a run that two died with is stopped."""
        if victim == "runner":
            servers.wait_until(
                lambda: not self._had_runner_killed & self._under_way, what="earlier runs ended"
            )
            servers.wait_until(lambda: self._cluster.kill(victim), what="a runner")
            with self._lock:
                self._had_runner_killed = set(self._under_way)
        else:
            self._cluster.kill(victim)

    # Clients

    def _run_until_stopped(self) -> None:
        with httpx.Client(trust_env=False, timeout=30) as client:
            while not self._stop.is_set():
                with self._lock:
                    self._number += 1
                    number = self._number
                    self._under_way.add(number)
                try:
                    self._run_once(client, number)
                except RunLostError as error:
                    self._violation(f"run {number}: {error}")
                finally:
                    with self._lock:
                        self._under_way.discard(number)

    def _run_once(self, client: httpx.Client, number: int) -> None:
        text = TEXTS[number % len(TEXTS)]
        location = self._begin(client, {"text": text, "number": number}, f"key-{number}")
        with self._lock:
            self._report.accepted += 1
        document = self._wait_ended(client, location)
        if document.get("result") == self._cluster.expected_result(text, number):
            steps = document["steps"]
            with self._lock:
                self._report.succeeded += 1
                self._report.resumed += document["resumptions"] > 0
                self._report.repeated += sum("attempts" in each for each in steps)
                self._report.made_again += sum(each.get("lost_tensors", 0) for each in steps)
        else:
            self._violation(f"run {number}: {document.get('error') or document.get('result')}")

    def _begin(self, client: httpx.Client, arguments: Mapping[str, Any], key: str) -> str:
        """The location of a run that was accepted, however often that took."""
        found = ""

        def is_begun() -> bool:
            nonlocal found
            response = client.post(
                f"{self._cluster.url}/v1/workflows/chain:run",
                json=arguments,
                headers={"prefer": "respond-async", "idempotency-key": key},
            )
            if response.status_code == 202:
                found = response.headers["location"]
            elif response.status_code not in (429, 502, 503):
                raise RunLostError(f"refused: {response.status_code} {response.text[:200]}")
            return bool(found)

        _wait(is_begun, "run accepted")
        return found

    def _wait_ended(self, client: httpx.Client, location: str) -> dict[str, Any]:
        document: dict[str, Any] = {}

        def has_ended() -> bool:
            nonlocal document
            response = client.get(f"{self._cluster.url}{location}")
            if response.status_code == 404:
                self._violation(f"{location} is unknown: {response.text[:200]}")
                return True
            if response.status_code == 200:
                document = response.json()
            return bool(document.get("status", "running") != "running")

        _wait(has_ended, f"end of {location}")
        return document

    def _violation(self, text: str) -> None:
        with self._lock:
            self._report.violations.append(text)


def _wait(condition: Any, what: str) -> None:
    """As `servers.wait_until`, polled so seldom that clients leave the cluster time."""
    began_s = time.monotonic()
    while time.monotonic() - began_s < _RUN_LIMIT_S:
        try:
            if condition():
                return
        except (OSError, httpx.TransportError):
            pass
        time.sleep(_POLL_S)
    raise RunLostError(f"{what}: not within {_RUN_LIMIT_S:g} s")
