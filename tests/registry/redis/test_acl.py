"""Redis' users by role, on real servers: what each may do, logins, rotation of passwords."""

import asyncio
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from common.pod_secret import make_secret
from registry.domain.application import ApplicationSpec
from registry.domain.model import ModelName, ModelSpec
from registry.domain.pod import PodPhase
from registry.errors import RegistryRefused, RegistryUnavailable
from registry.redis import acl
from registry.redis.acl import Role, acl_file, set_users
from registry.redis.client import Registry
from registry.redis.redis_connection import RedisConnection
from registry.redis.reports import ArrivalLog, AutoscalerLog
from registry.redis.server_address import find_server
from registry.redis.workflow_log import WorkflowLog
from tests import servers
from tests.registry.redis.clients import KEY as KEY_OF_MODEL
from tests.registry.redis.clients import SPEC, Pod, release, reserve
from tests.servers import REPOSITORY

Operation = Callable[[Registry], Awaitable[object]]
Passwords = dict[str, tuple[str, ...]]
FIRST: Passwords = {role: (make_secret(),) for role in Role}
KEY = "pilotlight:{p}:"


def is_exact(executable: str) -> bool:
    """Whether the server knows rights to read only."""
    shown = subprocess.run([executable, "--version"], capture_output=True, text=True, check=True)
    found = re.search(r"v=(\d+)", shown.stdout)
    assert found is not None
    return int(found[1]) >= 7


@dataclass
class Guarded:
    """A Redis whose users are those of `acl_file`."""

    server: servers.RedisServer
    folder: Path
    is_exact: bool
    opened: list[Registry] = field(default_factory=list)

    def write(self, passwords: Passwords) -> None:
        """As a kubelet does with the mounted Secret."""
        (self.folder / "users.acl").write_text(acl_file(passwords, is_exact=self.is_exact))
        for role, lines in passwords.items():
            (self.folder / role).write_text("\n".join(lines))

    def url(self, role: str) -> str:
        file = self.folder / role
        return f"redis://{role}@127.0.0.1:{self.server.port}?password_file={file}"

    async def connection(self, role: str) -> RedisConnection:
        return await RedisConnection.open(await find_server(self.url(role), ""))

    async def registry(self, role: str) -> Registry:
        self.opened.append(await Registry.connect(self.url(role), "p"))
        return self.opened[-1]

    async def run(self, operation: Operation, role: str) -> object:
        return await operation(await self.registry(role))


@pytest.fixture
async def guarded(executable: str, tmp_path: Path) -> AsyncIterator[Guarded]:
    options = ("--aclfile", str(tmp_path / "users.acl"))
    server = servers.RedisServer(tmp_path / "redis", executable=executable, options=options)
    found = Guarded(server, tmp_path, is_exact(executable))
    found.write(FIRST)
    try:
        server.start()
        yield found
    finally:
        for each in found.opened:
            await each.close()
        server.stop()


# What each role may do


async def _read(registry: Registry) -> object:
    return await registry.cluster()


async def _put(registry: Registry) -> object:
    return await registry.put_models([ModelSpec(ModelName("default", "other"), "s3://models/two")])


async def _withdraw(registry: Registry) -> object:
    return await registry.delete_models([SPEC.name])


async def _put_application(registry: Registry) -> object:
    return await registry.put_applications([ApplicationSpec(ModelName("n", "app"), ("a", "b"))])


async def _serve(registry: Registry) -> object:
    pod = await Pod.join_warm(registry, "pod-2")
    await pod.heartbeat()
    await registry.deregister_pod("pod-2", pod.epoch)
    return pod


async def _reserve(registry: Registry) -> object:
    granted = await reserve(registry, "pod-1")
    await release(registry, "id", "pod-1")
    return granted


async def _report_arrivals(registry: Registry) -> object:
    log = ArrivalLog(registry)
    await log.report("gateway", 1, [(SPEC.name, 1, 0)], {})
    return log


async def _lead(registry: Registry) -> object:
    return await AutoscalerLog(registry).acquire_lead("me", ttl_s=5)


async def _deploy(registry: Registry) -> object:
    return await WorkflowLog(registry).put_workflow(ModelName("n", "w"), {"kind": "file"})


async def _begin_run(registry: Registry) -> object:
    return await WorkflowLog(registry).begin_run("run", {}, "me", lease_s=5)


OPERATIONS: list[tuple[Operation, set[Role]]] = [
    (_read, set(Role) - {Role.ADMIN}),
    (_put, {Role.CONTROLLER}),
    (_withdraw, {Role.CONTROLLER}),
    (_put_application, {Role.CONTROLLER}),
    (_serve, {Role.POD}),
    (_reserve, set(Role) - {Role.ADMIN}),
    (_report_arrivals, {Role.GATEWAY}),
    (_lead, {Role.AUTOSCALER}),
    (_deploy, {Role.CONTROLLER, Role.SCHEDULER}),
    (_begin_run, {Role.SCHEDULER}),
]


async def test_an_operation_is_for_its_roles(guarded: Guarded) -> None:
    await (await guarded.registry(Role.CONTROLLER)).put_models([SPEC])
    await Pod.join_warm(await guarded.registry(Role.POD), "pod-1", slots=9)
    for operation, allowed in OPERATIONS:
        for role in sorted(Role, key=allowed.__contains__):  # what is so already needs no rights
            if role in allowed:
                await guarded.run(operation, role)
            elif guarded.is_exact:
                with pytest.raises(RegistryRefused):
                    await guarded.run(operation, role)


def _of_gateway(name: str) -> Iterator[tuple[Any, ...]]:
    yield "arrivals", "gateway", 1, [[name, 1, 0]], {name: [1, 0, 0]}
    yield "arrivals", "gateway", 2, [], {}
    yield from (("idle_memory",), ("plans",), ("under_way",), ("gpus",), ("declared",))
    yield from (("workflows",), ("latest_runs",), ("model", name), ("waiting",))


def _of_autoscaler(name: str, token: int) -> Iterator[tuple[Any, ...]]:
    yield "intend", token, "id", 1000, name, "{}"
    yield "ended", "id", name, '{"ended":1}', "{}"
    yield "scale", token, "{}", name, "{}"
    yield "place", token, '{"pods":[]}', name, "{}"
    yield "expect", token, "{}"
    yield "advise", token, "{}"
    yield "arrivals_in", "second", 1, 2
    yield from (
        ("demand",),
        ("under_way",),
        ("plans",),
        ("waiting",),
        ("hints",),
        ("copies",),
        ("gpus",),
    )
    yield "resign", token


def _of_controller(name: str, key: str) -> Iterator[tuple[Any, ...]]:
    yield "put_application", "n/app", "{}"
    yield "delete_application", "n/app"
    yield "accuracy", name, key, "{}"
    yield "profile", name, key, "{}", "cpu"
    yield "unreadable", key, name, "{}"
    yield "declared_at", [[name, 1]]
    yield "put_workflow", "n/w", '{"kind":"file"}'
    yield "delete_workflow", "n/w"
    yield from (
        ("demand",),
        ("taken", [name]),
        ("loading",),
        ("planner",),
        ("plans",),
        ("gpus",),
        ("copies",),
    )
    yield from (("declared",), ("workflows",), ("latest_runs",), ("idle_memory",), ("waiting",))
    yield from (("arrivals_in", "second", 1, 2), ("share_snapshot", 0), ("delete", name))


def _of_scheduler(token: int) -> Iterator[tuple[Any, ...]]:
    yield "put_workflow", "n/w", '{"kind":"file"}'
    yield "put_workflow_counts", "n/w", "{}", 0
    yield "put_hints", "me", "[]", 1000
    yield "put_hints", "me", "", 1000
    yield "append_run", "run", token, 0, "{}"
    yield "replace_run_entries", "run", token, ["{}"]
    yield "renew_runs", [["run", token]], 1000
    yield "cancel_run", "run"
    yield "cancelled_runs", ["run"]
    yield "end_run", "run", token, "{}", "succeeded", 1000
    yield from (("run", "run"), ("latest_runs",), ("take_runs", "me", 1000, 9), ("workflows",))
    yield from (("workflow", "n/w"), ("workflow_counts", "n/w"), ("delete_workflow", "n/w"))


async def test_each_role_may_do_all_that_its_processes_do(guarded: Guarded) -> None:
    clients = {role: await guarded.registry(role) for role in Role if role is not Role.ADMIN}
    name = str(SPEC.name)
    await clients[Role.CONTROLLER].put_models([SPEC])
    pod = await Pod.join_warm(clients[Role.POD], "pod-1", slots=9)
    token = await AutoscalerLog(clients[Role.AUTOSCALER]).acquire_lead("me", ttl_s=60)
    run = await WorkflowLog(clients[Role.SCHEDULER]).begin_run("run", {}, "me", lease_s=60)
    assert token is not None
    assert run is not None
    operations: dict[Role, list[tuple[Any, ...]]] = {
        Role.GATEWAY: [*_of_gateway(name)],
        Role.AUTOSCALER: [*_of_autoscaler(name, token)],
        Role.SCHEDULER: [*_of_scheduler(run)],
        Role.POD: [
            ("broken", "pod-1", pod.epoch, KEY_OF_MODEL, name, "{}"),
            ("profile", name, KEY_OF_MODEL, "{}", "cpu"),
            ("take_place", "pod-1", "cpu", 1000),
            ("share_snapshot", 0),
            ("has_address", "127.0.0.1:1"),
            ("infer_end", "id", "pod-1"),
        ],
        Role.CONTROLLER: [*_of_controller(name, KEY_OF_MODEL)],
    }
    for role, client in clients.items():
        for operation in [("sync",), ("look",), ("snapshot",), *operations[role]]:
            try:
                await client.transactions.submit(*operation)
            except RegistryRefused as error:
                pytest.fail(f"{role} may not {operation}: {error}")
        for phase in (PodPhase.DRAINING, PodPhase.READY):
            await client.set_phase("pod-1", pod.epoch, phase)
    await clients[Role.CONTROLLER].deregister_pod("pod-1", pod.epoch)


ALWAYS, ON_7, NEVER = "always", "refused on Redis 7", "never"
COMMANDS = [
    (Role.POD, ("HGETALL", KEY + "models"), ALWAYS),
    (Role.POD, ("HSET", KEY + "models", "n/m", "{}"), ON_7),
    (Role.POD, ("HDEL", KEY + "models", "n/m"), ON_7),
    (Role.POD, ("HSET", KEY + "previous", "n/m", "{}"), ON_7),
    (Role.POD, ("HDEL", KEY + "previous", "n/m"), ALWAYS),
    (Role.POD, ("SET", KEY + "placement", "{}"), ON_7),
    (Role.POD, ("HGETALL", KEY + "workflows"), NEVER),
    (Role.POD, ("HGETALL", KEY + "arrivals:second:1"), NEVER),
    (Role.GATEWAY, ("HDEL", KEY + "models", "n/m"), ON_7),
    (Role.GATEWAY, ("DEL", KEY + "models"), ON_7),
    (Role.GATEWAY, ("HSET", KEY + "failures", "n/m", "{}"), ON_7),
    (Role.GATEWAY, ("GET", KEY + "snapshot"), NEVER),
    (Role.AUTOSCALER, ("HSET", KEY + "models", "n/m", "{}"), ON_7),
    (Role.AUTOSCALER, ("HDEL", KEY + "waiting", "gateway"), ALWAYS),
    (Role.AUTOSCALER, ("HSET", KEY + "waiting", "gateway", "[]"), ON_7),
    (Role.SCHEDULER, ("HDEL", KEY + "models", "n/m"), ON_7),
    (Role.CONTROLLER, ("HSET", KEY + "leader", "holder", "me"), ON_7),
    (Role.CONTROLLER, ("SUBSCRIBE", "__keyspace@0__:x"), NEVER),
    (Role.ADMIN, ("HGETALL", KEY + "models"), NEVER),
    *(
        (role, words, NEVER)
        for role in Role
        for words in (
            ("GET", "of-another-program"),
            ("CONFIG", "GET", "*"),
            ("KEYS", "*"),
            ("FLUSHALL",),
            ("SCRIPT", "FLUSH"),
            ("ACL", "LIST"),
            ("EVAL", "return 1", "0"),
            ("PUBLISH", "of-another-program", "x"),
            ("MONITOR",),
            ("SHUTDOWN",),
        )
    ),
    *((role, ("ACL", "SETUSER", "x"), NEVER) for role in Role if role is not Role.ADMIN),
]


async def test_a_command_is_for_its_roles(guarded: Guarded) -> None:
    connections = {role: await guarded.connection(role) for role in Role}
    for role, words, allowed in COMMANDS:
        if allowed == ALWAYS or (allowed == ON_7 and not guarded.is_exact):
            await connections[role].call(*words)
            continue
        with pytest.raises(RegistryRefused) as refused:
            await connections[role].call(*words)
        assert refused.value.code == "NOPERM", (role, words)
    for each in connections.values():
        each.close()


async def test_the_rights_hold_in_a_script_of_ones_own(guarded: Guarded) -> None:
    if not guarded.is_exact:
        pytest.skip("this Redis knows no rights to read only")
    connection = await guarded.connection(Role.POD)
    source = f"return redis.call('HSET', '{KEY}models', 'n/m', '{{}}')"
    sha = await connection.call("SCRIPT", "LOAD", source)
    with pytest.raises(RegistryRefused, match=r"can't access|permission"):
        await connection.call("EVALSHA", sha, "1", KEY)
    connection.close()


def test_every_key_of_the_scripts_has_its_readers_and_writers() -> None:
    recorded = (REPOSITORY / "tests" / "surface" / "redis.txt").read_text()
    keys = set(re.findall(r"^key pilotlight:\{POOL\}:(.*)$", recorded, re.MULTILINE))
    known = {key for keys in acl._KEYS.values() for key in keys}
    computed = {"*:*", "arrivals:*:*"}  # slots and ongoing; arrivals by window
    assert keys - computed <= known
    assert len(known) == sum(map(len, acl._KEYS.values()))


# Logins


async def test_nobody_gets_in_without_a_password(guarded: Guarded) -> None:
    with pytest.raises(RegistryRefused, match=r"NOAUTH.*password_file=FILE"):
        await Registry.connect(guarded.server.url)


async def test_a_wrong_password_is_refused_with_the_way_out(guarded: Guarded) -> None:
    (guarded.folder / Role.POD).write_text(make_secret())
    with pytest.raises(RegistryRefused, match=r"WRONGPASS.*names a user and a password"):
        await guarded.registry(Role.POD)


@pytest.mark.parametrize(("text", "problem"), [(None, "cannot be read"), ("\n", "is empty")])
async def test_a_file_without_passwords_is_named(
    guarded: Guarded, text: str | None, problem: str
) -> None:
    file = guarded.folder / Role.POD
    file.unlink()
    if text is not None:
        file.write_text(text)
    with pytest.raises(RegistryUnavailable, match=f"password_file {file} {problem}"):
        await guarded.registry(Role.POD)


def test_the_command_prints_the_lines_of_an_acl_file(tmp_path: Path, executable: str) -> None:
    if not is_exact(executable):
        pytest.skip("this Redis knows no rights to read only")
    shown = subprocess.run(
        [sys.executable, "-m", "registry.redis.acl"], capture_output=True, text=True, check=True
    )
    file = tmp_path / "users.acl"
    file.write_text(shown.stdout)
    with servers.redis_server(
        tmp_path / "redis", executable=executable, options=("--aclfile", str(file))
    ) as started:
        url = f"redis://gateway:PASSWORD@127.0.0.1:{started.port}"
        asyncio.run(_connect_and_close(url))


async def _connect_and_close(url: str) -> None:
    await (await Registry.connect(url)).close()


# Rotation


async def test_a_rotation_under_load_fails_no_call(guarded: Guarded) -> None:
    """Redis knows the passwords before the files of the clients have them."""
    if not guarded.is_exact:
        pytest.skip("the controller's Redis is of version 7 or later")
    second: Passwords = {role: (*old, make_secret()) for role, old in FIRST.items()}
    third: Passwords = {role: lines[-1:] for role, lines in second.items()}
    await (await guarded.registry(Role.CONTROLLER)).put_models([SPEC])
    await Pod.join_warm(await guarded.registry(Role.POD), "pod-1", slots=1000)
    gateway = await guarded.registry(Role.GATEWAY)
    calls, is_rotated = 0, asyncio.Event()

    async def load() -> None:
        nonlocal calls
        while not is_rotated.is_set():
            await reserve(gateway, "pod-1")
            await _connect_and_close(guarded.url(Role.GATEWAY))
            calls += 1

    async def some_calls() -> None:
        before = calls
        while calls < before + 5:  # noqa: ASYNC110 - a count of calls has no event
            await asyncio.sleep(0.001)

    async def rotate() -> None:
        for passwords in (second, third):
            await some_calls()
            await set_users(guarded.url(Role.CONTROLLER), passwords)
            await some_calls()
            guarded.write(passwords)
            await some_calls()
        is_rotated.set()

    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        tasks.create_task(load())
        tasks.create_task(rotate())
    assert calls >= 30
    assert gateway.transactions.origin.count(".") == 0  # it has lost no batch
    (guarded.folder / Role.GATEWAY).write_text(FIRST[Role.GATEWAY][0])
    with pytest.raises(RegistryRefused, match="WRONGPASS"):
        await guarded.registry(Role.GATEWAY)


async def test_a_restarted_redis_knows_its_users(guarded: Guarded) -> None:
    second: Passwords = {role: (*old, make_secret()) for role, old in FIRST.items()}
    guarded.server.stop()
    guarded.server.start()  # its file is of before the rotation
    guarded.write(second)
    await _connect_and_close(guarded.url(Role.POD))  # by the former password
    with pytest.raises(RegistryRefused, match="NOAUTH"):
        await Registry.connect(guarded.server.url)
