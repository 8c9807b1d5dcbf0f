"""Finding the Redis server that holds a pool's keys: URLs of single servers, Sentinels, Clusters.

redis-py asks Sentinels and Clusters; it is imported only for these, since that takes 0.4 s.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final
from urllib.parse import SplitResult, unquote, urlsplit

from registry.errors import RegistryUnavailable

DISCOVERY_TIMEOUT_S: Final = 0.5
"""For each server that is asked for the address; redis-py would retry for several seconds."""


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """Where the server that holds the pool's keys listens now, and how to log in."""

    host: str
    port: int
    path: str = ""
    """Of a Unix socket; empty: host and port."""
    use_tls: bool = False
    username: str | None = None
    password: str | None = None
    database: int = 0


def check_url(url: str) -> SplitResult:
    """The parts of a Redis URL. Raises ValueError for a form that `find_server` cannot use."""
    parts = urlsplit(url)
    if parts.scheme == "unix":
        if parts.netloc or not parts.path.strip("/"):
            raise ValueError(f"the URL of a Unix socket must be unix:///PATH, was {url!r}")
        return parts
    path = parts.path.strip("/")
    if parts.scheme == "redis+sentinel":
        service, _, path = path.partition("/")
        if not service:
            raise ValueError(f"the Sentinel URL must name a service after the hosts, was {url!r}")
    elif parts.scheme not in ("redis", "rediss", "redis+cluster"):
        raise ValueError(
            "the Redis URL must begin with redis://, rediss://, unix://, redis+sentinel:// or "
            f"redis+cluster://, was {url!r}"
        )
    if path and not (path.isascii() and path.isdigit()):
        raise ValueError(f"the path of the Redis URL must be a database number, was {url!r}")
    for host in _hosts(parts):
        _, colon, port = host.rpartition("]")[2].rpartition(":")
        is_port = port.isascii() and port.isdigit() and int(port) < 65536
        if "," in host or (colon and not is_port):
            raise ValueError(f"the Redis URL must name its servers as host:port, was {url!r}")
    return parts


def parse_redis_url(text: str) -> str:
    """A setting that holds the registry's URL. Raises ValueError as `check_url` does."""
    check_url(text)
    return text


async def find_server(url: str, routing_key: str) -> ServerAddress:
    """Find the server for a URL.

    `redis://`, `rediss://` and `unix://` URLs name it.

    `redis+sentinel://[user:pw@]host:port,host:port/SERVICE[/DB]` asks the Sentinels for the master;
    `redis+cluster://host:port` asks the Cluster which node holds `routing_key`.

    Raises:
        RegistryUnavailable: when no Sentinel or node of the Cluster gives an address.
        ValueError: when the URL has another form.
    """
    parts = check_url(url)
    if parts.scheme == "unix":
        return ServerAddress(host="", port=0, path=unquote(parts.path))
    username = unquote(parts.username) if parts.username else None
    password = unquote(parts.password) if parts.password else None
    if parts.scheme in ("redis", "rediss"):
        return ServerAddress(
            host=parts.hostname or "127.0.0.1",
            port=parts.port or 6379,
            use_tls=parts.scheme == "rediss",
            username=username,
            password=password,
            database=int(parts.path.strip("/") or 0),
        )
    import redis
    from redis.exceptions import RedisClusterException  # not a subclass of RedisError

    try:
        async with asyncio.timeout(DISCOVERY_TIMEOUT_S * (1 + len(_hosts(parts)))):
            if parts.scheme == "redis+sentinel":
                return await _ask_sentinels(parts, username, password)
            return await _ask_cluster(parts, routing_key, username, password)
    except (redis.RedisError, RedisClusterException, OSError) as error:  # OSError: timeouts, too
        raise RegistryUnavailable(f"no Redis found through {parts.scheme}: {error}") from error


def _hosts(parts: SplitResult) -> list[str]:
    hosts = parts.netloc.rpartition("@")[2]
    return hosts.split(",") if parts.scheme == "redis+sentinel" else [hosts]


async def _ask_sentinels(
    parts: SplitResult, username: str | None, password: str | None
) -> ServerAddress:
    import redis.asyncio
    from redis.asyncio.retry import Retry
    from redis.backoff import NoBackoff

    hosts = [host.partition(":") for host in _hosts(parts)]
    service, _, database = parts.path.strip("/").partition("/")
    sentinel = redis.asyncio.Sentinel(  # type: ignore[no-untyped-call]  # redis-py has no types
        [(host, int(port or 26379)) for host, _, port in hosts],
        sentinel_kwargs={
            "socket_timeout": DISCOVERY_TIMEOUT_S,
            "socket_connect_timeout": DISCOVERY_TIMEOUT_S,
            "retry": Retry(NoBackoff(), 0),  # ask the next Sentinel instead
        },
    )
    try:
        host, port = await sentinel.discover_master(service)
    finally:
        for client in sentinel.sentinels:
            await client.aclose()
    return ServerAddress(
        host=str(host),
        port=int(port),
        username=username,
        password=password,
        database=int(database or 0),
    )


async def _ask_cluster(
    parts: SplitResult, routing_key: str, username: str | None, password: str | None
) -> ServerAddress:
    import redis.asyncio

    cluster = redis.asyncio.RedisCluster(
        host=parts.hostname or "127.0.0.1",
        port=parts.port or 6379,
        username=username,
        password=password,
        socket_timeout=DISCOVERY_TIMEOUT_S,
        socket_connect_timeout=DISCOVERY_TIMEOUT_S,
    )
    try:
        await cluster.initialize()
        node = cluster.get_node_from_key(routing_key)
        if node is None:
            raise RegistryUnavailable("the Redis Cluster has no node for the pool's slot")
        return ServerAddress(
            host=str(node.host), port=int(node.port), username=username, password=password
        )
    finally:
        await cluster.aclose()
