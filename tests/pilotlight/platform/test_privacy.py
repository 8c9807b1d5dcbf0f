"""What other users of the machine see of a platform: no secret, no file, no socket."""

import stat
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from common.pod_secret import HEADER, PodSecret
from registry.errors import RegistryRefused
from registry.redis.acl import Role
from registry.redis.client import Registry
from registry.redis.server_address import check_url, password_file
from tests.pilotlight.platform.running import RunningPlatform, pids_of, start_platform

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory, objects: Path) -> Iterator[RunningPlatform]:
    home = tmp_path_factory.mktemp("home")
    home.chmod(0o755)
    running = start_platform(home, "--pods", "1", "--objects", str(objects), "--autoscaler")
    try:
        yield running
    finally:
        running.cli("down")


def secret_of(platform: RunningPlatform) -> str:
    return (platform.home / "pod-secret").read_text().strip()


def test_pods_refuse_other_users(platform: RunningPlatform) -> None:
    [pod] = platform.get("pods")
    for path in ("/v2/repository/index", "/v2/repository/models/default~m/load"):
        url = f"http://{pod['address']}{path}"
        assert httpx.post(url, json={}, trust_env=False, timeout=60).status_code == 401
        headers = PodSecret(str(platform.home / "pod-secret")).headers
        assert (
            httpx.post(url, json={}, headers=headers, trust_env=False, timeout=60).status_code
            != 401
        )


def test_files_and_sockets_are_the_users_own(platform: RunningPlatform) -> None:
    assert stat.S_IMODE(platform.home.stat().st_mode) == 0o700
    socket = Path(check_url(platform.facts["redis_url"]).path)
    assert stat.S_ISSOCK(socket.stat().st_mode)
    assert stat.S_IMODE(socket.parent.stat().st_mode) == 0o700
    open_to_others = [
        path
        for path in platform.home.rglob("*")
        if not path.is_symlink() and stat.S_IMODE(path.stat().st_mode) & 0o077
    ]
    assert open_to_others == []


async def test_redis_asks_for_the_password_of_a_role(platform: RunningPlatform) -> None:
    url = str(platform.facts["redis_url"])
    await (await Registry.connect(url)).close()
    path = check_url(url).path
    for stranger in (f"unix://{path}", f"unix://pod@{path}"):
        with pytest.raises(RegistryRefused, match="NOAUTH"):
            await Registry.connect(stranger)
    of_pods = url.replace("controller", "pod")
    assert password_file(of_pods) == str(platform.home / "redis" / "pod-password")
    await (await Registry.connect(of_pods)).close()


def test_no_argument_and_no_log_has_the_secret(platform: RunningPlatform) -> None:
    passwords = [each.read_text() for each in (platform.home / "redis").glob("*-password")]
    assert len(passwords) == len(Role)
    secrets = [secret_of(platform), *passwords]
    pids = pids_of(platform)
    assert len(pids) > 3
    for pid in pids:
        command = Path(f"/proc/{pid}/cmdline").read_text()
        environment = Path(f"/proc/{pid}/environ")
        assert stat.S_IMODE(environment.stat().st_mode) == 0o400
        shown = command + environment.read_text()
        assert not any(secret in shown for secret in secrets)
    for log in (platform.home / "logs").iterdir():
        text = log.read_text(errors="replace")
        assert not any(secret in text for secret in (*secrets, HEADER))
