"""Finding the Redis server that holds a pool's keys: URLs of single servers, Sentinels, Clusters.

redis-py asks Sentinels and Clusters; it is imported only for these, since that takes 0.4 s.
"""

import asyncio
import re
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from registry.errors import RegistryUnavailable

DISCOVERY_TIMEOUT_S: Final = 0.5
"""For each server that is asked for the address; redis-py would retry for several seconds."""


_SENTINEL: Final = ("redis+sentinel", "rediss+sentinel")
_CLUSTER: Final = ("redis+cluster", "rediss+cluster")
_SENTINEL_LOGIN: Final = {"sentinel-user": "username", "sentinel-password": "password"}
"""Parameters of the query, and redis-py's names of them."""
_AUTHORITIES: Final = "ssl_ca_certs"
"""Parameter of the query with TLS, by redis-py's name."""


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """Where the server that holds the pool's keys listens now, and how to log in."""

    host: str
    port: int
    path: str = ""
    """Of a Unix socket; empty: host and port."""
    use_tls: bool = False
    authorities_file: str = ""
    """Authorities to trust with TLS, in PEM; empty: those of the system, or of SSL_CERT_FILE."""
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
    if parts.scheme in _SENTINEL:
        service, _, path = path.partition("/")
        if not service:
            raise ValueError(f"the Sentinel URL must name a service after the hosts, was {url!r}")
    elif parts.scheme not in ("redis", "rediss", *_CLUSTER):
        raise ValueError(
            "the Redis URL must begin with redis://, unix://, redis+sentinel:// or redis+cluster://,"
            " or, for TLS, rediss://, rediss+sentinel:// or rediss+cluster://, was"
            f" {_hidden(url)!r}"
        )
    _check_query(parts, url)
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


def _query(parts: SplitResult) -> dict[str, str]:
    return dict(parse_qsl(parts.query, keep_blank_values=True))


def _check_query(parts: SplitResult, url: str) -> None:
    """Raises ValueError for what the query may not have."""
    query = _query(parts)
    allowed = [*_SENTINEL_LOGIN] if parts.scheme in _SENTINEL else []
    if _uses_tls(parts):
        allowed.append(_AUTHORITIES)
    if query.keys() - set(allowed):
        raise ValueError(
            f"the query of the Redis URL may have {', '.join(allowed) or 'nothing'}, has"
            f" {', '.join(sorted(query))} in {_hidden(url)!r}"
        )
    if query.get(_AUTHORITIES) == "":
        raise ValueError(f"{_AUTHORITIES} in the Redis URL must be a file, in {_hidden(url)!r}")


def _authorities_file(parts: SplitResult) -> str:
    return _query(parts).get(_AUTHORITIES, "")


def _tls_options(parts: SplitResult) -> dict[str, Any]:
    """redis-py's arguments for TLS."""
    options: dict[str, Any] = {"ssl": _uses_tls(parts)}
    if file := _authorities_file(parts):
        options["ssl_ca_certs"] = file
    return options


def _sentinel_login(parts: SplitResult) -> dict[str, str]:
    """User and password of Sentinels themselves, from the query."""
    query = _query(parts)
    return {name: query[key] for key, name in _SENTINEL_LOGIN.items() if key in query}


def _hidden(url: str) -> str:
    """The URL without passwords, for messages."""
    return re.sub(r"(://[^/@]*:)[^@]*(?=@)|(password=)[^&]*", r"\1\2***", url)


async def find_server(url: str, routing_key: str) -> ServerAddress:
    """Find the server for a URL.

    `redis://`, `rediss://` and `unix://` URLs name it.

    `redis+sentinel://[user:pw@]host:port,host:port/SERVICE[/DB]` asks the Sentinels for the master;
    a query `?sentinel-user=…&sentinel-password=…` has the Sentinels' own login.
    `redis+cluster://[user:pw@]host:port` asks the Cluster which node holds `routing_key`.
    With `rediss` and `rediss+` all connections are encrypted; `?ssl_ca_certs=FILE`, or
    SSL_CERT_FILE for all of a process, names authorities of one's own.

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
            use_tls=_uses_tls(parts),
            authorities_file=_authorities_file(parts),
            username=username,
            password=password,
            database=int(parts.path.strip("/") or 0),
        )
    import redis
    from redis.exceptions import RedisClusterException  # not a subclass of RedisError

    try:
        async with asyncio.timeout(DISCOVERY_TIMEOUT_S * (1 + len(_hosts(parts)))):
            if parts.scheme in _SENTINEL:
                return await _ask_sentinels(parts, username, password)
            return await _ask_cluster(parts, routing_key, username, password)
    except (redis.RedisError, RedisClusterException, OSError) as error:  # OSError: timeouts, too
        raise RegistryUnavailable(f"no Redis found through {parts.scheme}: {error}") from error


def _uses_tls(parts: SplitResult) -> bool:
    return parts.scheme.startswith("rediss")


def _hosts(parts: SplitResult) -> list[str]:
    hosts = parts.netloc.rpartition("@")[2]
    return hosts.split(",") if parts.scheme in _SENTINEL else [hosts]


def _host_and_port(text: str, default_port: int) -> tuple[str, int]:
    """Of `host:port`, `host` or, for IPv6, `[address]:port`."""
    parts = urlsplit(f"//{text}")
    return parts.hostname or "127.0.0.1", parts.port or default_port


async def _ask_sentinels(
    parts: SplitResult, username: str | None, password: str | None
) -> ServerAddress:
    import redis.asyncio
    from redis.asyncio.retry import Retry
    from redis.backoff import NoBackoff

    service, _, database = parts.path.strip("/").partition("/")
    sentinel = redis.asyncio.Sentinel(  # type: ignore[no-untyped-call]  # redis-py has no types
        [_host_and_port(each, 26379) for each in _hosts(parts)],
        sentinel_kwargs={
            **_sentinel_login(parts),
            **_tls_options(parts),
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
        use_tls=_uses_tls(parts),
        authorities_file=_authorities_file(parts),
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
        **_tls_options(parts),
        socket_timeout=DISCOVERY_TIMEOUT_S,
        socket_connect_timeout=DISCOVERY_TIMEOUT_S,
    )
    try:
        await cluster.initialize()
        node = cluster.get_node_from_key(routing_key)
        if node is None:
            raise RegistryUnavailable("the Redis Cluster has no node for the pool's slot")
        return ServerAddress(
            host=str(node.host),
            port=int(node.port),
            use_tls=_uses_tls(parts),
            authorities_file=_authorities_file(parts),
            username=username,
            password=password,
        )
    finally:
        await cluster.aclose()
