"""One shared connection to Redis on which concurrent calls are pipelined by themselves.

redis-py costs about 170 us of CPU per asyncio call, this 57 us, which is why the warm path does not
go through it. Finding the server behind a Sentinel or Cluster URL is still redis-py's work.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import SplitResult, unquote, urlsplit

import hiredis

from registry.errors import RegistryRefused, RegistryUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

FIND_TIMEOUT_S = 0.5
"""For each server asked where to go; redis-py by itself tries again for several seconds."""
CONNECT_TIMEOUT_S = 0.8
"""Callers shall hear within a second that Redis is away."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where the server that holds the pool's keys listens now."""

    host: str
    port: int
    use_tls: bool = False
    username: str | None = None
    password: str | None = None
    database: int = 0


async def resolve(url: str, routing_key: str) -> Address:
    """Find the server for `redis://`, `rediss://`, `redis+sentinel://` or `redis+cluster://` URLs.

    `redis+sentinel://[user:pw@]host:port,host:port/SERVICE[/DB]` asks the Sentinels for the master;
    `redis+cluster://host:port` asks the Cluster which node holds `routing_key`.

    Raises:
        RegistryUnavailable: when nobody can tell.
        ValueError: when the URL has another form.
    """
    parts = check_url(url)
    username = unquote(parts.username) if parts.username else None
    password = unquote(parts.password) if parts.password else None
    if parts.scheme in ("redis", "rediss"):
        return Address(
            host=parts.hostname or "127.0.0.1",
            port=parts.port or 6379,
            use_tls=parts.scheme == "rediss",
            username=username,
            password=password,
            database=int(parts.path.strip("/") or 0),
        )
    import redis  # 0.4 s, which the command line need not wait for
    from redis.exceptions import RedisClusterException  # which is no RedisError

    try:
        async with asyncio.timeout(FIND_TIMEOUT_S * (1 + len(_hosts(parts)))):
            if parts.scheme == "redis+sentinel":
                return await _ask_sentinels(parts, username, password)
            return await _ask_cluster(parts, routing_key, username, password)
    except (redis.RedisError, RedisClusterException, OSError) as error:  # timeouts, too
        raise RegistryUnavailable(f"no Redis found through {parts.scheme}: {error}") from error


def check_url(url: str) -> SplitResult:
    """The parts of a Redis URL. Raises ValueError when it has none of the forms of `resolve`."""
    parts = urlsplit(url)
    path = parts.path.strip("/")
    if parts.scheme == "redis+sentinel":
        service, _, path = path.partition("/")
        if not service:
            raise ValueError(f"the Sentinel URL must name a service after the hosts, was {url!r}")
    elif parts.scheme not in ("redis", "rediss", "redis+cluster"):
        raise ValueError(
            "the Redis URL must begin with redis://, rediss://, redis+sentinel:// or "
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


def _hosts(parts: SplitResult) -> list[str]:
    hosts = parts.netloc.rpartition("@")[2]
    return hosts.split(",") if parts.scheme == "redis+sentinel" else [hosts]


async def _ask_sentinels(parts: SplitResult, username: str | None, password: str | None) -> Address:
    import redis.asyncio
    from redis.asyncio.retry import Retry
    from redis.backoff import NoBackoff

    hosts = [host.partition(":") for host in _hosts(parts)]
    service, _, database = parts.path.strip("/").partition("/")
    sentinel = redis.asyncio.Sentinel(  # type: ignore[no-untyped-call]  # redis-py has no types
        [(host, int(port or 26379)) for host, _, port in hosts],
        sentinel_kwargs={
            "socket_timeout": FIND_TIMEOUT_S,
            "socket_connect_timeout": FIND_TIMEOUT_S,
            "retry": Retry(NoBackoff(), 0),  # ask the next one instead
        },
    )
    try:
        host, port = await sentinel.discover_master(service)
    finally:
        for client in sentinel.sentinels:
            await client.aclose()
    return Address(
        host=str(host),
        port=int(port),
        username=username,
        password=password,
        database=int(database or 0),
    )


async def _ask_cluster(
    parts: SplitResult, routing_key: str, username: str | None, password: str | None
) -> Address:
    import redis.asyncio

    cluster = redis.asyncio.RedisCluster(
        host=parts.hostname or "127.0.0.1",
        port=parts.port or 6379,
        username=username,
        password=password,
        socket_timeout=FIND_TIMEOUT_S,
        socket_connect_timeout=FIND_TIMEOUT_S,
    )
    try:
        await cluster.initialize()
        node = cluster.get_node_from_key(routing_key)
        if node is None:
            raise RegistryUnavailable("the Redis Cluster has no node for the pool's slot")
        return Address(
            host=str(node.host), port=int(node.port), username=username, password=password
        )
    finally:
        await cluster.aclose()


class RedisConnection(asyncio.Protocol):
    """A connected socket; replies come back in the order of the calls."""

    def __init__(self, on_message: Callable[[bytes], None] | None = None) -> None:
        self._reader = hiredis.Reader()
        self._waiting: deque[Callable[[Any], None]] = deque()
        self._transport: asyncio.Transport | None = None
        self._on_message = on_message
        self._closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @classmethod
    async def open(
        cls, address: Address, on_message: Callable[[bytes], None] | None = None
    ) -> RedisConnection:
        """Connect and authenticate. Raises RegistryUnavailable within `CONNECT_TIMEOUT_S`."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                _, connection = await loop.create_connection(
                    lambda: cls(on_message),
                    address.host,
                    address.port,
                    ssl=True if address.use_tls else None,
                )
                try:
                    await connection._greet(address)
                except BaseException:
                    connection.close()
                    raise
        except (OSError, TimeoutError, hiredis.HiredisError) as error:
            raise RegistryUnavailable(
                f"Redis at {address.host}:{address.port} cannot be reached: {error}"
            ) from error
        return connection

    async def _greet(self, address: Address) -> None:
        if address.password:
            user = [address.username] if address.username else []
            await self.call("AUTH", *user, address.password)
        if address.database:
            await self.call("SELECT", str(address.database))

    def call(self, *arguments: str | bytes) -> asyncio.Future[Any]:
        """Send one command; the future holds its reply or raises RegistryUnavailable."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def settle(reply: Any) -> None:
            if future.done():
                return
            if isinstance(reply, RegistryUnavailable):
                future.set_exception(reply)
            else:
                future.set_result(reply)

        self.call_then(settle, *arguments)
        return future

    def call_then(self, settle: Callable[[Any], None], *arguments: str | bytes) -> None:
        """Send one command; `settle` gets its reply, or a RegistryUnavailable in its place."""
        if self._transport is None or self._transport.is_closing():
            settle(RegistryUnavailable("the connection to Redis is closed"))
            return
        self._waiting.append(settle)
        self._transport.write(hiredis.pack_command(arguments))

    def call_together_then(
        self, settle: Callable[[Any], None], *commands: Sequence[str | bytes]
    ) -> None:
        """Send commands that run with nothing of other clients in between.

        `settle` gets the list of their replies, or a RegistryUnavailable in its place: the first
        error of any of them.
        """
        if self._transport is None or self._transport.is_closing():
            settle(RegistryUnavailable("the connection to Redis is closed"))
            return
        errors: list[RegistryUnavailable] = []

        def hear_queued(reply: Any) -> None:
            if isinstance(reply, RegistryUnavailable):
                errors.append(reply)

        def hear(reply: Any) -> None:
            if isinstance(reply, list):
                refused = (each for each in reply if isinstance(each, hiredis.ReplyError))
                errors.extend(RegistryRefused(str(each)) for each in refused)
            settle(errors[0] if errors else reply)

        whole = (("MULTI",), *commands, ("EXEC",))
        self._waiting.extend([hear_queued] * (len(whole) - 1))
        self._waiting.append(hear)
        self._transport.write(b"".join(hiredis.pack_command(tuple(each)) for each in whole))

    def close(self) -> None:
        """Drop the connection; calls under way fail."""
        if self._transport is not None:
            self._transport.abort()

    @property
    def is_open(self) -> bool:
        """Whether calls can still be made."""
        return self._transport is not None and not self._transport.is_closing()

    async def wait_closed(self) -> None:
        """Return when the connection is gone, for whatever reason."""
        await asyncio.shield(self._closed)

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Hand every complete reply to whoever waits for it; messages to the subscriber."""
        self._reader.feed(data)
        try:
            while (reply := self._reader.gets()) is not False:
                self._deliver(reply)
        except hiredis.ProtocolError:
            self.close()

    def _deliver(self, reply: Any) -> None:
        if self._on_message is not None and isinstance(reply, list) and reply[0] == b"message":
            self._on_message(reply[2])
            return
        if not self._waiting:
            self.close()  # an error nobody asked for, such as too many clients
            return
        settle = self._waiting.popleft()
        if isinstance(reply, hiredis.ReplyError):
            settle(RegistryRefused(str(reply)))
        else:
            settle(reply)

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail everything that waits."""
        error = RegistryUnavailable(f"the connection to Redis was lost: {exc or 'closed'}")
        while self._waiting:
            self._waiting.popleft()(error)
        if not self._closed.done():
            self._closed.set_result(None)
