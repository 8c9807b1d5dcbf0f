"""The kinds of faults. Each is a context: entering causes the fault, leaving ends it.

A killed process is restarted by the platform; what the platform's operator restarts (supervisor,
Redis) is restarted here.
"""

import asyncio
import os
import random
import resource
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Final

import redis

from registry.errors import RegistryUnavailable
from tests import servers
from tests.chaos.platform import PlatformUnderTest
from tests.chaos.processes import Process
from tests.chaos.redis_group import DOWN_AFTER_MS

_MAX_STOP_S: Final = 30.0
_SLOW_S: Final = 0.4
_STARTS: Final = 3
_FREE_BYTES: Final = 4096


class NotCaused(Exception):
    """The fault met nothing that it could act on. Raised before it has changed anything."""


@dataclass(frozen=True, slots=True)
class Cause:
    """What a fault acts on."""

    platform: PlatformUnderTest
    rng: random.Random
    killed: dict[tuple[int, int], float]
    """When a fault caused the end of a process, by its identity; faults add to it."""

    def pick(self, role: str) -> Process:
        """One of this role's processes. Raises NotCaused: another fault has ended all."""
        found = sorted(self.platform.of_role(role), key=lambda each: each.pid)
        if not found:
            raise NotCaused(f"no process: {role}")
        return self.rng.choice(found)


Fault = AbstractAsyncContextManager[None]


@dataclass(frozen=True, slots=True)
class Kind:
    name: str
    begin: Callable[[Cause], Fault]
    max_s: float = 0.0
    """The longest time that it lasts; 0: it has no duration."""
    weight: float = 1.0
    needs_disk: bool = False

    def duration_s(self, rng: random.Random) -> float:
        """Log-uniform from 0.3 s, so that most faults are short and some are long."""
        return 0.3 * (self.max_s / 0.3) ** rng.random() if self.max_s else 0.0


def _kill(role: str) -> Callable[[Cause], Fault]:
    @asynccontextmanager
    async def killed(cause: Cause) -> AsyncIterator[None]:
        victim = cause.pick(role)
        lost = {victim.identity}
        if role in {"forkserver", "supervisor"}:  # the kernel ends what they have started
            lost = {
                each.identity
                for each in cause.platform.processes()
                if role == "supervisor" or each.role in {"forkserver", "pod"}
            }
        for identity in lost:
            cause.killed.setdefault(identity, time.monotonic())
        _send(victim.pid, signal.SIGKILL)
        if role == "supervisor":
            await asyncio.to_thread(_start_again, cause, lost)
        yield

    return killed


def _start_again(cause: Cause, lost: set[tuple[int, int]]) -> None:
    servers.wait_until(
        lambda: not lost & {each.identity for each in cause.platform.processes()},
        what="processes gone",
    )
    servers.wait_until(lambda: _has_registry(cause), what="a registry, without which none starts")
    for _ in range(_STARTS - 1):
        with suppress(RuntimeError):  # a machine too busy to start it in time
            cause.platform.up()
            return
    cause.platform.up()


def _has_registry(cause: Cause) -> bool:
    with suppress(RegistryUnavailable):
        asyncio.run(cause.platform.state())
        return True
    return False


def _stop(role: str) -> Callable[[Cause], Fault]:
    @asynccontextmanager
    async def stopped(cause: Cause) -> AsyncIterator[None]:
        victim = cause.pick(role)
        _send(victim.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            _send(victim.pid, signal.SIGCONT)

    return stopped


def _starve(role: str) -> Callable[[Cause], Fault]:
    """The process can open no descriptor more: it accepts no connection and opens no file."""

    @asynccontextmanager
    async def starved(cause: Cause) -> AsyncIterator[None]:
        victim = cause.pick(role)
        with suppress(ProcessLookupError):
            before = resource.prlimit(victim.pid, resource.RLIMIT_NOFILE)
            resource.prlimit(victim.pid, resource.RLIMIT_NOFILE, (16, before[1]))
        try:
            yield
        finally:
            with suppress(ProcessLookupError):
                resource.prlimit(victim.pid, resource.RLIMIT_NOFILE, before)

    return starved


@asynccontextmanager
async def _redis_restarted(cause: Cause) -> AsyncIterator[None]:
    """Killed and started again before Sentinel notices, with the data of its append-only file."""
    group = cause.platform.redis
    master = await asyncio.to_thread(group.master)
    master.stop()
    await asyncio.sleep(DOWN_AFTER_MS / 1000 * 0.5 * cause.rng.random())
    await asyncio.to_thread(group.start_again, master)
    yield


@asynccontextmanager
async def _redis_failed_over(cause: Cause) -> AsyncIterator[None]:
    """Killed until Sentinel has promoted the replica; it comes back as the new one's replica."""
    group = cause.platform.redis
    master = await asyncio.to_thread(group.master)
    master.stop()
    for _ in range(200):
        await asyncio.sleep(0.1)
        if await asyncio.to_thread(group.master) is not master:
            break
    await asyncio.to_thread(group.start_again, master)
    yield


@asynccontextmanager
async def _redis_asked_to_fail_over(cause: Cause) -> AsyncIterator[None]:
    await asyncio.to_thread(cause.platform.redis.fail_over)
    yield


@asynccontextmanager
async def _redis_stopped(cause: Cause) -> AsyncIterator[None]:
    """SIGSTOP: long ones make Sentinel promote the replica while the old master comes back."""
    process = (await asyncio.to_thread(cause.platform.redis.master)).process
    if process is None:
        raise NotCaused("the master does not run")
    _send(process.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        _send(process.pid, signal.SIGCONT)


@asynccontextmanager
async def _redis_emptied(cause: Cause) -> AsyncIterator[None]:
    """FLUSHALL; then the operator declares the models again."""
    try:
        with cause.platform.redis.connect() as client:
            client.flushall()
    except redis.RedisError as error:
        raise NotCaused(f"FLUSHALL: {error}") from error
    for _ in range(20):
        try:
            await cause.platform.declare()
            break
        except RegistryUnavailable:  # another fault keeps Redis away
            await asyncio.sleep(0.5)
    yield


@asynccontextmanager
async def _redis_slow(cause: Cause) -> AsyncIterator[None]:
    """Every half second Redis does nothing for 0.4 s."""

    def pause() -> None:
        with suppress(redis.RedisError, OSError), cause.platform.redis.connect() as client:
            client.execute_command("DEBUG", "SLEEP", _SLOW_S)

    async def slow() -> None:
        while True:
            await asyncio.to_thread(pause)
            await asyncio.sleep(0.1)

    task = asyncio.create_task(slow())
    try:
        yield
    finally:
        task.cancel()


@asynccontextmanager
async def _redis_refuses(cause: Cause) -> AsyncIterator[None]:
    """All connections are closed and new ones refused."""
    client = await asyncio.to_thread(cause.platform.redis.connect)
    try:
        client.config_set("maxclients", 1)
    except redis.RedisError as error:
        client.close()
        raise NotCaused(f"maxclients: {error}") from error
    with suppress(redis.RedisError):
        for kind in ("normal", "pubsub"):
            client.client_kill_filter(_type=kind)
    try:
        yield
    finally:
        with suppress(redis.RedisError):
            client.config_set("maxclients", 10_000)
        client.close()


@asynccontextmanager
async def _sentinel_killed(cause: Cause) -> AsyncIterator[None]:
    group = cause.platform.redis
    if group.sentinel is not None:
        group.sentinel.kill()
        group.sentinel.wait()
    try:
        yield
    finally:
        group.start_sentinel()


@asynccontextmanager
async def _disk_full(cause: Cause) -> AsyncIterator[None]:
    """No byte is left for logs, cached models, and Redis' append-only file."""
    ballast = cause.platform.disk / "ballast"
    with suppress(OSError), ballast.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(_FREE_BYTES * 64))
    with suppress(OSError), ballast.open("ab", buffering=0) as file:
        while True:
            file.write(bytes(_FREE_BYTES))
    try:
        yield
    finally:
        ballast.unlink()


def _send(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


KINDS: Final = (
    Kind("pod killed", _kill("pod"), weight=4),
    Kind("pod stopped", _stop("pod"), _MAX_STOP_S, weight=3),
    Kind("pod without descriptors", _starve("pod"), 10.0),
    Kind("gateway killed", _kill("gateway"), weight=3),
    Kind("gateway stopped", _stop("gateway"), _MAX_STOP_S),
    Kind("gateway without descriptors", _starve("gateway"), 10.0),
    Kind("autoscaler killed", _kill("autoscaler")),
    Kind("autoscaler stopped", _stop("autoscaler"), _MAX_STOP_S),
    Kind("scheduler killed", _kill("scheduler"), weight=0.5),
    Kind("scheduler stopped", _stop("scheduler"), _MAX_STOP_S, weight=0.5),
    Kind("forkserver killed", _kill("forkserver"), weight=0.4),
    Kind("forkserver stopped", _stop("forkserver"), _MAX_STOP_S),
    Kind("supervisor killed", _kill("supervisor"), weight=0.4),
    Kind("supervisor stopped", _stop("supervisor"), _MAX_STOP_S),
    Kind("object store killed", _kill("object store")),
    Kind("object store stopped", _stop("object store"), _MAX_STOP_S),
    Kind("Redis restarted", _redis_restarted, weight=2),
    Kind("Redis failed over", _redis_failed_over, weight=2),
    Kind("Redis asked to fail over", _redis_asked_to_fail_over),
    Kind("Redis stopped", _redis_stopped, _MAX_STOP_S),
    Kind("Redis emptied", _redis_emptied, weight=2),
    Kind("Redis slow", _redis_slow, 10.0, weight=2),
    Kind("Redis refuses", _redis_refuses, 10.0),
    Kind("Sentinel killed", _sentinel_killed, 10.0),
    Kind("disk full", _disk_full, 10.0, weight=2, needs_disk=True),
)
