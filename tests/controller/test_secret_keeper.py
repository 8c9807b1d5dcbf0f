"""The rotation of Secrets, and the manifests that mount them."""

import base64
import datetime
import shutil
import stat
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from kubernetes.aio.client import ApiClient

from common.pod_secret import parse_secrets
from controller.secret_keeper import (
    CHANGED_AT,
    OVERLAP_S,
    PODS,
    PODS_ENTRY,
    REDIS,
    REDIS_USERS,
    SecretKeeper,
    Secrets,
    next_secrets,
    redis_keeper,
)
from controller.settings import ControllerSettings
from registry.errors import RegistryUnavailable
from registry.redis.acl import Role
from registry.redis.client import Registry
from registry.redis.server_address import password_file
from tests.controller.api_server import ApiServer, connect, running
from tests.rendered import kustomized
from tests.servers import RedisServer

OLD, NEW = "old-secret-of-pods", "new-secret-of-pods"
DAY_S = 86_400.0


def test_a_period_after_the_last_change_a_secret_is_added() -> None:
    assert next_secrets(OLD, DAY_S - 1, DAY_S) is None
    added = next_secrets(OLD, DAY_S, DAY_S)
    assert added is not None
    assert added[0] == OLD
    assert parse_secrets("\n".join(added)) == added


def test_the_old_secret_goes_when_all_kubelets_had_time() -> None:
    assert next_secrets(f"{OLD}\n{NEW}", OVERLAP_S - 1, DAY_S) is None
    assert next_secrets(f"{OLD}\n{NEW}", OVERLAP_S, DAY_S) == (NEW,)


@pytest.mark.parametrize("text", ["", "short", "\n"])
def test_an_unusable_secret_is_replaced_at_once(text: str) -> None:
    replaced = next_secrets(text, 0.0, DAY_S)
    assert replaced is not None
    assert parse_secrets(replaced[0]) == replaced


NOW = datetime.datetime(2026, 11, 30, tzinfo=datetime.UTC)
NAMESPACE = "pilotlight"


def _stored(server: ApiServer) -> dict[str, str]:
    data = server.config_maps[REDIS]["data"]
    return {name: base64.b64decode(text).decode() for name, text in data.items()}


@pytest.fixture
async def server() -> AsyncIterator[tuple[ApiServer, SecretKeeper]]:
    found = ApiServer()
    async with running(found) as url, connect(url) as api:
        yield found, SecretKeeper(api, NAMESPACE, REDIS, ["a", "b"], derive=_derived)


def _derived(secrets: Secrets) -> dict[str, str]:
    return {"users": " ".join(each for name in "ab" for each in secrets[name])}


async def test_the_entries_of_a_secret_rotate_together(
    server: tuple[ApiServer, SecretKeeper],
) -> None:
    api, keeper = server
    made = await keeper.keep(NOW)
    assert made is not None
    assert _stored(api) == {name: made[name][0] for name in "ab"} | {
        "users": _derived(made)["users"]
    }
    assert await keeper.keep(NOW + datetime.timedelta(hours=23)) == made
    both = await keeper.keep(NOW + datetime.timedelta(hours=24))
    assert both is not None
    assert {name: lines[:1] for name, lines in both.items()} == made
    assert {len(lines) for lines in both.values()} == {2}
    assert _stored(api)["users"] == _derived(both)["users"]
    last = await keeper.keep(NOW + datetime.timedelta(hours=25))
    assert last == {name: lines[1:] for name, lines in both.items()}


async def test_what_another_version_derived_is_written_anew_without_a_rotation(
    server: tuple[ApiServer, SecretKeeper],
) -> None:
    api, keeper = server
    made = await keeper.keep(NOW)
    stored = api.config_maps[REDIS]
    stored["data"]["users"] = ""
    assert await keeper.keep(NOW + datetime.timedelta(hours=1)) == made
    assert made is not None
    assert _stored(api)["users"] == _derived(made)["users"]
    assert api.config_maps[REDIS]["metadata"]["annotations"][CHANGED_AT] == NOW.isoformat()


async def test_a_secret_of_somebody_else_is_left_alone(
    server: tuple[ApiServer, SecretKeeper],
) -> None:
    api, keeper = server
    theirs = {"metadata": {"name": REDIS, "resourceVersion": "1"}, "data": {}}
    api.config_maps[REDIS] = theirs
    assert await keeper.keep(NOW) is None
    assert api.config_maps[REDIS] is theirs


@dataclass(frozen=True, slots=True)
class Rotation:
    """A Redis that mounted the first version of the Secret."""

    api: ApiServer
    client: ApiClient
    settings: ControllerSettings
    redis: RedisServer
    own: Path
    """The file of the controller's password."""

    async def keep(self, keeper: SecretKeeper, hour: int) -> None:
        """After which the controller can log in."""
        await keeper.keep(NOW + datetime.timedelta(hours=hour))
        await (await Registry.connect(self.settings.redis_url)).close()


@pytest.fixture
async def rotation(tmp_path: Path) -> AsyncIterator[Rotation]:
    if shutil.which("redis-server") is None:
        pytest.skip("needs Redis 7")
    api, own, users = ApiServer(), tmp_path / "own", tmp_path / REDIS_USERS
    options = ("--aclfile", str(users))
    redis = RedisServer(tmp_path / "redis", executable="redis-server", options=options)
    url = f"redis://controller@127.0.0.1:{redis.port}?password_file={own}"
    settings = ControllerSettings(redis_url=url, namespace=NAMESPACE)
    async with running(api) as server, connect(server) as client:
        with pytest.raises(RegistryUnavailable):  # Redis waits for the Secret
            await redis_keeper(client, settings).keep(NOW)
        users.write_text(_stored(api)[REDIS_USERS])
        redis.start()
        try:
            yield Rotation(api, client, settings, redis, own)
        finally:
            redis.stop()


async def test_the_controller_logs_in_and_redis_learns_each_rotation(rotation: Rotation) -> None:
    keeper = redis_keeper(rotation.client, rotation.settings)
    for hour in (0, 24, 25, 49, 50):
        await rotation.keep(keeper, hour)
        for role in (Role.GATEWAY, Role.POD):
            for password in _stored(rotation.api)[role].split():
                login = f"redis://{role}:{password}@127.0.0.1:{rotation.redis.port}"
                await (await Registry.connect(login)).close()
    assert stat.S_IMODE(rotation.own.stat().st_mode) == 0o600


@pytest.mark.parametrize("is_deleted", [False, True], ids=["killed", "its Secret is deleted"])
async def test_redis_is_never_left_with_passwords_that_nobody_has(
    rotation: Rotation, *, is_deleted: bool
) -> None:
    """A controller that is killed when it has written the Secret, and starts again hours later."""
    client = rotation.client
    keeper = redis_keeper(client, rotation.settings)
    await rotation.keep(keeper, 0)
    if is_deleted:
        del rotation.api.config_maps[REDIS]
    else:
        rotating = SecretKeeper(client, NAMESPACE, REDIS, list(Role))  # tells Redis nothing
        await rotating.keep(NOW + datetime.timedelta(hours=24))
        keeper = redis_keeper(client, rotation.settings)
    for hour in (30, 31, 32):
        await rotation.keep(keeper, hour)


@pytest.mark.parametrize("text", ["", "yesterday", "2026-11-30T00:00:00"])
async def test_a_time_that_cannot_be_read_starts_the_period_anew(
    server: tuple[ApiServer, SecretKeeper], text: str
) -> None:
    api, keeper = server
    made = await keeper.keep(NOW)
    annotations = api.config_maps[REDIS]["metadata"]["annotations"]
    annotations[CHANGED_AT] = text
    assert await keeper.keep(NOW) == made
    assert api.config_maps[REDIS]["metadata"]["annotations"][CHANGED_AT] == NOW.isoformat()


PARTS = {
    Role.GATEWAY: ("Deployment", "pilotlight-gateway"),
    Role.AUTOSCALER: ("Deployment", "pilotlight-autoscaler"),
    Role.SCHEDULER: ("Deployment", "pilotlight-workflows"),
    Role.POD: ("InferenceService", "pool"),
}


def _pod(found: dict[str, Any]) -> dict[str, Any]:
    spec: dict[str, Any] = found["spec"]
    return spec["predictor"] if "predictor" in spec else dict(spec["template"]["spec"])


def _environment(pod: dict[str, Any]) -> dict[str, Any]:
    return {each["name"]: each.get("value") for each in pod["containers"][0]["env"]}


@pytest.mark.parametrize("overlay", ["minimal", "production"])
def test_gateway_autoscaler_scheduler_and_pods_mount_their_secrets(overlay: str) -> None:
    found = kustomized("workflows", overlay=overlay)
    for role, part in PARTS.items():
        pod = _pod(found[part])
        mounts = {each["name"]: each["mountPath"] for each in pod["containers"][0]["volumeMounts"]}
        volume = next(each for each in pod["volumes"] if each["name"] == "pod-secret")
        assert volume["projected"]["sources"] == [  # not optional: no pod is open meanwhile
            {"secret": {"name": PODS}},
            {"secret": {"name": REDIS, "items": [{"key": role, "path": "redis"}]}},
        ]
        named = _environment(pod)["PILOTLIGHT_POD_SECRET_FILE"]
        assert named == f"{mounts['pod-secret']}/{PODS_ENTRY}"
    rules = [
        (each["verbs"], each.get("resourceNames"))
        for each in found["Role", "pilotlight-controller"]["rules"]
    ]
    assert (["get", "update"], [PODS, REDIS]) in rules


@pytest.mark.parametrize("components", [("workflows",), ("workflows", "tls", "redis-tls")])
def test_each_part_logs_in_to_the_bases_redis_by_its_role(components: tuple[str, ...]) -> None:
    found = kustomized(*components)
    parts = {**PARTS, Role.CONTROLLER: ("Deployment", "pilotlight-controller")}
    for role, part in parts.items():
        url = _environment(_pod(found[part]))["PILOTLIGHT_REDIS_URL"]
        assert f"://{role}@" in url
        folder = "/tmp" if role is Role.CONTROLLER else "/etc/pilotlight/pods"
        assert password_file(url) == f"{folder}/redis"
    redis = _pod(found["Deployment", "pilotlight-redis"])
    [users] = [each for each in redis["volumes"] if each["name"] == "users"]
    assert users["secret"]["secretName"] == REDIS
    assert users["secret"]["items"] == [{"key": REDIS_USERS, "path": REDIS_USERS}]
    arguments = redis["containers"][0]["args"]
    file = arguments[arguments.index("--aclfile") + 1]
    [mount] = [each for each in redis["containers"][0]["volumeMounts"] if each["name"] == "users"]
    assert file == f"{mount['mountPath']}/{REDIS_USERS}"


def test_redis_leaves_a_lost_node_after_half_a_minute() -> None:
    tolerations = _pod(kustomized()["Deployment", "pilotlight-redis"])["tolerations"]
    assert {each["key"]: each["tolerationSeconds"] for each in tolerations} == {
        "node.kubernetes.io/not-ready": 30,
        "node.kubernetes.io/unreachable": 30,
    }
