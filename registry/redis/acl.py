"""Redis' users by role: which keys and commands of the registry each needs, and nothing more.

Redis checks the caller's rights for every command of a script. `python -m registry.redis.acl`
prints the lines of an ACL file for a Redis that others operate.
"""

import hashlib
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from typing import Final

from registry.redis.redis_connection import RedisConnection
from registry.redis.script import script_parts
from registry.redis.server_address import find_server


class Role(StrEnum):
    """A process' user; its value is the name in Redis."""

    GATEWAY = "gateway"
    POD = "pod"
    AUTOSCALER = "autoscaler"
    CONTROLLER = "controller"
    """Declares models: also the command line, and `pilotlight up` itself."""
    SCHEDULER = "scheduler"
    """Of workflows."""
    ADMIN = "admin"
    """Sets the other users' passwords and rules; has no keys."""


_KEYS: Final = {
    # Of gateway, pod, autoscaler, controller, scheduler: r reads, d also deletes fields, w all.
    # Redis tries them in this order: those of reservations come first.
    "w w w w w": (
        "leases", "pod:*", "slots:*", "ongoing:*", "residency:*", "version", "news_version", "",
        "swept", "fence", "addresses", "warm:*", "claims:*", "unstarted", "samples:*", "measured",
        "forgotten",
    ),
    "r r r w r": ("models", "keys", "applications", "accuracies", "tenants"),
    "- - - w -": ("tenants_fence",),
    "d d d w d": ("previous", "previous_keys"),
    "r w r w r": ("failures", "profiles", "profiled:*"),
    "r - - w -": ("declared",),
    "r r w r r": ("wanted", "placement", "expected"),
    "r - w r -": ("leader", "intents", "history"),
    "r - w d -": ("acted",),
    "w - r r -": ("arrivals:*", "told:*"),
    "w - d d -": ("waiting",),
    "- - w r -": ("advice",),
    "- w - w -": ("snapshot", "sharing"),
    "r w r r -": ("idle:*", "idle_memory"),
    "- w - - -": ("places",),
    "r - - w w": ("workflows", "workflow-counts"),
    "- - w - w": ("workflow-hints", "workflow-hint-leases"),
    "r - - r w": ("runs", "run:*", "run-entries:*", "latest-runs"),
}  # fmt: skip
"""A key of `scripts/` that no row has can be used by nobody."""

_COMMANDS: Final = (
    "evalsha", "script|exists", "script|load", "multi", "exec", "ping", "select", "subscribe",
    "info", "command", "cluster|slots",
)  # fmt: skip
"""Besides those of `scripts/`."""
_PREFIX: Final = "pilotlight:{*}:"


def _keys(role: Role, access: str) -> list[str]:
    column = list(Role).index(role)
    found = [keys for given, keys in _KEYS.items() if given.split()[column] in access]
    return [_PREFIX + key for keys in found for key in keys]


def rules(role: Role) -> list[str]:
    """What the user may do, as arguments of `ACL SETUSER`."""
    if role is Role.ADMIN:
        return ["resetkeys", "resetchannels", "-@all", "+acl|setuser"]
    in_scripts = re.findall(rb"redis\.p?call\(\s*'(\w+)'", b"\n".join(script_parts()))
    commands = sorted({*_COMMANDS, *(each.decode().lower() for each in in_scripts)})
    channels = [f"&{_PREFIX}changes", f"&{_PREFIX}news"]
    found = ["resetkeys", "resetchannels", *channels, "-@all", *(f"+{each}" for each in commands)]
    found += [f"~{each}" for each in _keys(role, "w")]
    found += [f"%R~{each}" for each in _keys(role, "rd")]
    deletable = " ".join(f"~{each}" for each in _keys(role, "d"))
    return [*found, f"(+hdel {deletable})"] if deletable else found


def acl_file(passwords: Mapping[str, Sequence[str]], *, is_exact: bool = True) -> str:
    """The users by role, for Redis' `aclfile`; nobody gets in without a password.

    Not `is_exact`: for a Redis before 7, where users may also write what they read.
    """
    users = [
        " ".join(["user", role, "on", *_hashes(passwords[role]), *rules(role)]) for role in Role
    ]
    text = "\n".join(["user default off", *users, ""])
    return text if is_exact else re.sub(r" \(.*\)", "", text).replace("%R~", "~")


def _hashes(passwords: Sequence[str]) -> list[str]:
    return [f"#{hashlib.sha256(each.encode()).hexdigest()}" for each in passwords]


async def set_users(
    url: str, passwords: Mapping[str, Sequence[str]], former: Sequence[str] = ()
) -> None:
    """Have a running Redis accept these passwords; open connections stay.

    `former`: passwords of the admin that it may know in their place.

    Raises:
        RegistryUnavailable: when Redis cannot be reached, or knows none of the admin's passwords.
    """
    newest_first = (*reversed(passwords[Role.ADMIN]), *former)
    address = replace(await find_server(url, ""), username=Role.ADMIN, passwords=newest_first)
    connection = await RedisConnection.open(address)
    try:
        for role in Role:
            words = ["on", "resetpass", *_hashes(passwords[role]), "clearselectors", *rules(role)]
            await connection.call("ACL", "SETUSER", role, *words)
    finally:
        connection.close()


if __name__ == "__main__":
    for each in Role:
        if each is not Role.ADMIN:
            sys.stdout.write(f"user {each} on >PASSWORD {' '.join(rules(each))}\n")
