"""Connections to public addresses only, for URIs and endpoints that a tenant chose.

The address that is checked is the one that is connected to, so neither a name that resolves
differently the second time nor a redirect leads elsewhere. An operator's own hosts may be private.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable, Iterable, Mapping
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Any, NoReturn
from urllib.parse import urlsplit
from urllib.request import getproxies

REFUSAL = "the host has no public address that may be connected to"
"""One text for unknown hosts, private ones and closed ports: errors map no network."""
_NAT64 = 0x64_FF9B << 96
_ENDS_AND_STARTS = frozenset({"subprocess.Popen", "os.system", "os.exec", "os.posix_spawn",
                              "os.fork", "os.forkpty", "os.spawn"})  # fmt: skip
_SENDS = frozenset({"socket.connect", "socket.sendto", "socket.sendmsg", "socket.bind"})


class AddressRefused(OSError):
    """A host without an address that may be connected to."""

    def __init__(self) -> None:
        super().__init__(REFUSAL)


def is_public(text: str) -> bool:
    """Whether an IP address is global unicast, also where IPv6 only wraps an IPv4 address."""
    try:
        address: IPv4Address | IPv6Address = ip_address(text.partition("%")[0])
    except ValueError:
        return False
    return (
        address.is_global
        and not address.is_multicast
        and all(inner.is_global and not inner.is_multicast for inner in _wrapped(address))
    )


def _wrapped(address: IPv4Address | IPv6Address) -> Iterable[IPv4Address]:
    """The IPv4 addresses that an IPv6 address stands for: mapped, 6to4, Teredo, NAT64."""
    if isinstance(address, IPv4Address):
        return ()
    inner = [address.ipv4_mapped, address.sixtofour, *(address.teredo or ())]
    if int(address) >> 32 in (_NAT64 >> 32, 0):
        inner.append(IPv4Address(int(address) & 0xFFFF_FFFF))
    return [each for each in inner if each is not None]


def operator_hosts(environment: Mapping[str, str]) -> frozenset[str]:
    """Hosts that the pool's own environment names: its endpoints and proxies."""
    urls = [
        environment.get(name, "")
        for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "S3_ENDPOINT", "HF_ENDPOINT")
    ]
    urls += getproxies().values()
    return frozenset(host_of(url) for url in urls) - {""}


def host_of(url: str) -> str:
    """The host of a URL or `host:port`, in lower case; empty: none."""
    try:
        return urlsplit(url if "://" in url else f"//{url}").hostname or ""
    except ValueError:
        return ""


def connect_publicly(
    address: tuple[str, int], timeout: Any, hosts: frozenset[str], **options: Any
) -> socket.socket:
    """As `socket.create_connection`, to public addresses and to `hosts`.

    Raises AddressRefused, whatever the cause, except for `hosts`.
    """
    host, port = address
    if host.lower() in hosts:
        return socket.create_connection(address, timeout, **options)
    try:
        found = socket.getaddrinfo(host, port, 0, socket.SOCK_STREAM)
    except OSError:
        raise AddressRefused from None
    targets = [target[:2] for *_, target in found]
    if not targets or not all(is_public(str(ip)) for ip, _ in targets):
        raise AddressRefused
    for target in targets:
        try:
            return socket.create_connection((str(target[0]), port), timeout, **options)
        except OSError:
            continue
    raise AddressRefused


def confine_network(hosts: frozenset[str]) -> None:
    """Let this process connect to public addresses and to `hosts` only, and start no other.

    Cannot be undone. Names are resolved by `socket.getaddrinfo`, as all of Python's libraries do; a
    connection to a name is refused, since its address could not be checked.
    """
    allowed: set[str] = set()
    resolve: Callable[..., list[Any]] = socket.getaddrinfo

    def getaddrinfo(host: Any, *arguments: Any, **options: Any) -> list[Any]:
        name = host.decode() if isinstance(host, bytes) else host
        is_own = isinstance(name, str) and name.lower() in hosts
        try:
            found = resolve(host, *arguments, **options)
        except OSError:
            if is_own:
                raise
            raise AddressRefused from None
        if is_own:
            allowed.update(str(target[0]) for *_, target in found)
        return found

    def check(event: str, arguments: tuple[Any, ...]) -> None:
        if event in _SENDS:
            target = arguments[1]
            ip = target[0] if isinstance(target, tuple) and target else None
            if event == "socket.bind" and ip in ("", "0.0.0.0", "::"):
                return
            if not isinstance(ip, str) or not (ip in allowed or is_public(ip)):
                _refuse()
        elif event in _ENDS_AND_STARTS:
            _refuse()

    socket.getaddrinfo = getaddrinfo
    sys.addaudithook(check)


def _refuse() -> NoReturn:
    raise AddressRefused
