"""Finding the Redis server that holds a pool's keys: URLs of single servers, Sentinels, Clusters.

redis-py asks Sentinels and Clusters; it is imported only for these, since that takes 0.4 s.
"""

import asyncio
import re
from dataclasses import dataclass, replace
from pathlib import Path
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
_PASSWORDS: Final = "password_file"
"""Parameter of the query: a file of passwords, one per line, the newest last."""


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
    passwords: tuple[str, ...] = ()
    """In the order in which to try them."""
    database: int = 0


def check_url(url: str) -> SplitResult:
    """The parts of a Redis URL. Raises ValueError for a form that `find_server` cannot use."""
    parts, shown = urlsplit(url), _hidden(url)
    if parts.scheme == "unix":
        if parts.hostname or not parts.path.strip("/"):
            raise ValueError(
                f"the URL of a Unix socket must be unix:///PATH or unix://USER@/PATH, was {shown!r}"
            )
        _check_query(parts, url)
        return parts
    path = parts.path.strip("/")
    if parts.scheme in _SENTINEL:
        service, _, path = path.partition("/")
        if not service:
            raise ValueError(f"the Sentinel URL must name a service after the hosts, was {shown!r}")
    elif parts.scheme not in ("redis", "rediss", *_CLUSTER):
        raise ValueError(
            "the Redis URL must begin with redis://, unix://, redis+sentinel:// or redis+cluster://,"
            " or, for TLS, rediss://, rediss+sentinel:// or rediss+cluster://, was"
            f" {shown!r}"
        )
    _check_query(parts, url)
    if path and not (path.isascii() and path.isdigit()):
        raise ValueError(f"the path of the Redis URL must be a database number, was {shown!r}")
    for host in _hosts(parts):
        _, colon, port = host.rpartition("]")[2].rpartition(":")
        is_port = port.isascii() and port.isdigit() and int(port) < 65536
        if "," in host or (colon and not is_port):
            raise ValueError(f"the Redis URL must name its servers as host:port, was {shown!r}")
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
    allowed = [_PASSWORDS, *(_SENTINEL_LOGIN if parts.scheme in _SENTINEL else ())]
    if _uses_tls(parts):
        allowed.append(_AUTHORITIES)
    if query.keys() - set(allowed):
        raise ValueError(
            f"the query of the Redis URL may have {', '.join(allowed)}, has"
            f" {', '.join(sorted(query))} in {_hidden(url)!r}"
        )
    for name in (_AUTHORITIES, _PASSWORDS):
        if query.get(name) == "":
            raise ValueError(f"{name} in the Redis URL must be a file, in {_hidden(url)!r}")


def password_file(url: str) -> str | None:
    return _query(urlsplit(url)).get(_PASSWORDS)


def _passwords(parts: SplitResult) -> tuple[str, ...]:
    """Those to try: the file's, small and in memory, read for each connection; else the URL's."""
    file = _query(parts).get(_PASSWORDS)
    if file is None:
        return (unquote(parts.password),) if parts.password else ()
    try:
        found = Path(file).read_text("ascii").split()
    except (OSError, ValueError) as error:
        raise RegistryUnavailable(f"Redis' {_PASSWORDS} {file} cannot be read: {error}") from error
    if not found:
        raise RegistryUnavailable(f"Redis' {_PASSWORDS} {file} is empty: it needs a password")
    return tuple(reversed(found))


def _tls_options(named: ServerAddress) -> dict[str, Any]:
    file = named.authorities_file
    return {"ssl": named.use_tls, **({"ssl_ca_certs": file} if file else {})}


def _hidden(url: str) -> str:
    """The URL without passwords, for messages."""
    return re.sub(r"(://[^/@]*:).*(?=@)|(password=)[^&]*", r"\1\2***", url)


async def find_server(url: str, routing_key: str) -> ServerAddress:
    """Find the server for a URL.

    `redis://`, `rediss://` and `unix://` URLs name it.

    `redis+sentinel://[user:pw@]host:port,host:port/SERVICE[/DB]` asks the Sentinels for the master;
    a query `?sentinel-user=…&sentinel-password=…` has the Sentinels' own login.
    `redis+cluster://[user:pw@]host:port` asks the Cluster which node holds `routing_key`.
    With `rediss` and `rediss+` all connections are encrypted; `?ssl_ca_certs=FILE`, or
    SSL_CERT_FILE for all of a process, names authorities of one's own. `?password_file=FILE` has
    the user's passwords, of which Redis must know one.

    Raises:
        RegistryUnavailable: when no Sentinel or node of the Cluster gives an address, or the file
            of passwords cannot be read.
        ValueError: when the URL has another form.
    """
    parts = check_url(url)
    named = ServerAddress(
        host=parts.hostname or "127.0.0.1",
        port=0 if parts.scheme in ("unix", *_SENTINEL) else parts.port or 6379,
        path=unquote(parts.path) if parts.scheme == "unix" else "",
        use_tls=_uses_tls(parts),
        authorities_file=_query(parts).get(_AUTHORITIES, ""),
        username=unquote(parts.username) if parts.username else None,
        passwords=_passwords(parts),
        database=_database(parts),
    )
    if parts.scheme not in (*_SENTINEL, *_CLUSTER):
        return named
    import redis
    from redis.exceptions import RedisClusterException  # not a subclass of RedisError

    try:
        async with asyncio.timeout(DISCOVERY_TIMEOUT_S * (1 + len(_hosts(parts)))):
            if parts.scheme in _SENTINEL:
                return await _ask_sentinels(parts, named)
            return await _ask_cluster(routing_key, named)
    except (redis.RedisError, RedisClusterException, OSError) as error:  # OSError: timeouts, too
        raise RegistryUnavailable(f"no Redis found through {parts.scheme}: {error}") from error


def _database(parts: SplitResult) -> int:
    """The last part of the path, of a Sentinel's URL after the service."""
    path = parts.path.strip("/")
    if parts.scheme in _SENTINEL:
        path = path.partition("/")[2]
    return 0 if parts.scheme in ("unix", *_CLUSTER) else int(path or 0)


def _uses_tls(parts: SplitResult) -> bool:
    return parts.scheme.startswith("rediss")


def _hosts(parts: SplitResult) -> list[str]:
    hosts = parts.netloc.rpartition("@")[2]
    return hosts.split(",") if parts.scheme in _SENTINEL else [hosts]


def _host_and_port(text: str, default_port: int) -> tuple[str, int]:
    """Of `host:port`, `host` or, for IPv6, `[address]:port`."""
    parts = urlsplit(f"//{text}")
    return parts.hostname or "127.0.0.1", parts.port or default_port


async def _ask_sentinels(parts: SplitResult, named: ServerAddress) -> ServerAddress:
    import redis.asyncio
    from redis.asyncio.retry import Retry
    from redis.backoff import NoBackoff

    service, query = parts.path.strip("/").partition("/")[0], _query(parts)
    sentinel = redis.asyncio.Sentinel(  # type: ignore[no-untyped-call]  # redis-py has no types
        [_host_and_port(each, 26379) for each in _hosts(parts)],
        sentinel_kwargs={
            **{name: query[key] for key, name in _SENTINEL_LOGIN.items() if key in query},
            **_tls_options(named),
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
    return replace(named, host=str(host), port=int(port))


async def _ask_cluster(routing_key: str, named: ServerAddress) -> ServerAddress:
    import redis.asyncio

    cluster = redis.asyncio.RedisCluster(
        host=named.host,
        port=named.port,
        username=named.username,
        password=named.passwords[0] if named.passwords else None,
        **_tls_options(named),
        socket_timeout=DISCOVERY_TIMEOUT_S,
        socket_connect_timeout=DISCOVERY_TIMEOUT_S,
    )
    try:
        await cluster.initialize()
        node = cluster.get_node_from_key(routing_key)
        if node is None:
            raise RegistryUnavailable("the Redis Cluster has no node for the pool's slot")
        return replace(named, host=str(node.host), port=int(node.port))
    finally:
        await cluster.aclose()
