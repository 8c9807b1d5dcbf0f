"""Makes and rotates the Secrets that processes mount: the pods' secret, and Redis' passwords.

A rotation adds a new secret, and takes the old one away when every kubelet has had time to update
the mounted files. A Secret without the annotation is somebody else's and stays as it is.
"""

import asyncio
import base64
import datetime
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from kubernetes.aio import client

from common.pod_secret import make_secret, parse_secrets
from common.process import write_private_file
from controller.api import FAILURES, Changed, KubernetesError, StoredObject
from controller.settings import ControllerSettings
from registry.errors import RegistryUnavailable
from registry.redis.acl import Role, acl_file, set_users
from registry.redis.server_address import password_file

logger = logging.getLogger(__name__)

PODS: Final = "pilotlight-pods"
PODS_ENTRY: Final = "secrets"
REDIS: Final = "pilotlight-redis"
REDIS_USERS: Final = "users.acl"
"""Redis' `aclfile`, beside an entry of passwords for each role."""
CHANGED_AT: Final = "pilotlight.io/changed-at"
PERIOD_S: Final = 86_400.0
"""After which a secret is replaced: a copy of it that leaked is of use for a day."""
OVERLAP_S: Final = 3600.0
"""A kubelet updates a mounted Secret within two minutes; one without the API server, later."""
POLL_INTERVAL_S: Final = 60.0
RETRY_INTERVAL_S: Final = 2.0

Secrets = Mapping[str, Sequence[str]]
"""By entry, the newest last."""


def redis_keeper(api: client.ApiClient, settings: ControllerSettings) -> "SecretKeeper":
    former: Sequence[str] = ()

    async def use(passwords: Secrets) -> None:
        """Log in with them, and have Redis accept them; not if the Redis is the operator's."""
        nonlocal former
        if file := password_file(settings.redis_url):
            own = "\n".join(passwords[Role.CONTROLLER])
            await asyncio.to_thread(write_private_file, Path(file), own)
            await set_users(settings.redis_url, passwords, former)
            former = passwords[Role.ADMIN]

    return SecretKeeper(
        api,
        settings.namespace,
        REDIS,
        list(Role),
        derive=lambda passwords: {REDIS_USERS: acl_file(passwords)},
        on_kept=use,
    )


async def keep_periodically(keep: Callable[[], Awaitable[object]], what: str) -> None:
    """Call it every minute, sooner after a failure, until cancelled."""
    while True:
        pause_s = POLL_INTERVAL_S
        try:
            await keep()
        except Changed:  # another replica was faster
            pause_s = RETRY_INTERVAL_S
        except (KubernetesError, RegistryUnavailable) as error:
            FAILURES.labels(cause=type(error).__name__).inc()
            logger.warning("could not be kept; retrying", extra={"what": what}, exc_info=error)
            pause_s = RETRY_INTERVAL_S
        await asyncio.sleep(pause_s)


class SecretKeeper:
    """Any replica of the controller may act: the API server refuses a write that came second."""

    def __init__(
        self,
        api: client.ApiClient,
        namespace: str,
        name: str,
        entries: Sequence[str],
        *,
        derive: Callable[[Secrets], Mapping[str, str]] = lambda _: {},
        on_kept: Callable[[Secrets], Awaitable[None]] | None = None,
    ) -> None:
        """Each entry has secrets of its own, one per line; `derive` makes further entries of them.

        `on_kept` gets the secrets in force whenever they have been read.
        """
        self._store = StoredObject(client.CoreV1Api(api), "secret", name, namespace)
        self._name = name
        self._entries = entries
        self._derive = derive
        self._on_kept = on_kept
        self._kept: Secrets | None = None
        """Those that `on_kept` has taken."""

    async def run(self) -> None:
        """Until cancelled."""
        await keep_periodically(
            lambda: self.keep(datetime.datetime.now(datetime.UTC)), f"the Secret {self._name}"
        )

    async def keep(self, now: datetime.datetime) -> Secrets | None:
        """Make the Secret if it is missing, or take the next step of its rotation.

        Returns the secrets in force; None for a Secret of somebody else's.
        """
        secrets = await self._step(now)
        if secrets is not None and self._on_kept is not None:
            await self._on_kept(secrets)
            self._kept = secrets
        return secrets

    async def _step(self, now: datetime.datetime) -> Secrets | None:
        stored = await self._store.read()
        if stored is None:
            made = {each: (make_secret(),) for each in self._entries}
            return await self._write(made, now.isoformat(), version=None)
        changed_at = (stored.metadata.annotations or {}).get(CHANGED_AT)
        if changed_at is None:
            return None
        texts = {
            name: base64.b64decode(text).decode("ascii", "replace")
            for name, text in (stored.data or {}).items()
        }
        age_s = _age_s(changed_at, now)
        given = {each: texts.get(each, "") for each in self._entries}
        steps = {name: next_secrets(text, age_s or 0.0, PERIOD_S) for name, text in given.items()}
        if self._on_kept is not None and not any(map(_is_unusable, given.values())):
            current = {name: parse_secrets(text) for name, text in given.items()}
            if current != self._kept:  # a step further, Redis might know none of the passwords
                return current
        secrets = {name: step or parse_secrets(given[name]) for name, step in steps.items()}
        if self._data(secrets) == texts and age_s is not None:
            return secrets
        if age_s is None or any(steps.values()):  # else this version derives other entries
            changed_at = now.isoformat()
        return await self._write(secrets, changed_at, version=stored.metadata.resource_version)

    def _data(self, secrets: Secrets) -> dict[str, str]:
        texts = {name: "\n".join(each) for name, each in secrets.items()}
        return {**texts, **self._derive(secrets)}

    async def _write(self, secrets: Secrets, changed_at: str, *, version: str | None) -> Secrets:
        body = client.V1Secret(
            metadata=client.V1ObjectMeta(
                name=self._name, annotations={CHANGED_AT: changed_at}, resource_version=version
            ),
            string_data=self._data(secrets),
        )
        await self._store.write(body)
        logger.info("the Secret was changed", extra={"secret": self._name})
        return secrets


def _age_s(changed_at: str, now: datetime.datetime) -> float | None:
    """None: the annotation is no time."""
    try:
        return (now - datetime.datetime.fromisoformat(changed_at)).total_seconds()
    except (ValueError, TypeError):  # TypeError: it has no zone
        return None


def _is_unusable(text: str) -> bool:
    return next_secrets(text, 0.0, PERIOD_S) is not None


def next_secrets(text: str, age_s: float, period_s: float) -> tuple[str, ...] | None:
    """What follows a Secret's text that was written `age_s` ago; None: nothing yet.

    A new secret is added `period_s` after the last change, or at once if there is no valid one;
    `OVERLAP_S` later it is the only one.
    """
    try:
        secrets = parse_secrets(text)
    except ValueError:
        return (make_secret(),)
    if len(secrets) > 1:
        return secrets[-1:] if age_s >= OVERLAP_S else None
    return (*secrets, make_secret()) if age_s >= period_s else None
