"""The state directory of a platform (`--home`): its lock, its state file, and all other paths.

A platform runs exactly while the lock is held. The kernel releases the lock however the process
ends, so a state file left by a crash is never mistaken for a running platform.
"""

import fcntl
import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

from common.pod_secret import make_secret
from common.process import write_private_file
from pilotlight.errors import AlreadyRunning, NotRunning, StartFailed

_MIN_ROOM_BYTES = 4 << 20
"""Free space without which no platform is started: for its state, logs and the registry."""
_LOCK_TIMEOUT_S = 0.3
"""`is_locked` holds the lock for microseconds; a starting platform retries for this long."""


@dataclass(frozen=True, slots=True)
class PlatformState:
    """The contents of `platform.json`, which a running platform writes."""

    pid: int
    phase: str
    """`starting` or `ready`."""
    gateway: str = ""
    redis_url: str = ""
    pool: str = "default"
    grpc: str = ""
    """`host:port` of the gateway's V2 over gRPC; empty: none."""
    s3_endpoint: str | None = None
    autoscaler_metrics: str | None = None
    """URL of the autoscaler's metrics; None: no autoscaler runs."""
    pods: tuple[str, ...] = ()

    @classmethod
    def from_fields(cls, fields: dict[str, Any]) -> Self:
        return cls(**{**fields, "pods": tuple(fields["pods"])})


@dataclass(frozen=True, slots=True)
class StateDir:
    """Paths in one state directory, and whether a platform runs in it."""

    root: Path

    @classmethod
    def default(cls) -> "StateDir":
        """`$PILOTLIGHT_HOME`, or `~/.pilotlight`."""
        named = os.environ.get("PILOTLIGHT_HOME")
        return cls(Path(named).expanduser() if named else Path.home() / ".pilotlight")

    @classmethod
    def of(cls, folder: Path | None) -> "StateDir":
        """The folder as an absolute path; without one, the default."""
        return cls(folder.expanduser().absolute()) if folder else cls.default()

    @property
    def lock_file(self) -> Path:
        """Held by the platform's process for as long as it runs."""
        return self.root / "lock"

    @property
    def state_file(self) -> Path:
        """`platform.json`; invalid while the lock is free."""
        return self.root / "platform.json"

    def declared_file(self, pool: str) -> Path:
        """What is declared in the embedded Redis, for the next start."""
        return self.root / f"declared-{quote(pool, safe='')}.json"

    @property
    def logs(self) -> Path:
        """One file per process."""
        return self.root / "logs"

    @property
    def pod_secret(self) -> Path:
        """The secret of this run, which requests to its pods carry."""
        return self.root / "pod-secret"

    def make_private(self) -> None:
        """Make the directory, and withdraw what others may do in it."""
        for folder in (self.root, self.logs):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            folder.chmod(0o700)

    def check_room(self) -> None:
        """Raises StartFailed where a platform could not write its files."""
        try:
            self.make_private()
            with tempfile.TemporaryFile(dir=self.root) as probe:
                os.posix_fallocate(probe.fileno(), 0, _MIN_ROOM_BYTES)
        except OSError as error:
            raise StartFailed(
                f"the platform cannot write to {self.root}: {error.strerror}; it keeps its state, "
                f"logs and models there and needs {_MIN_ROOM_BYTES >> 20} MiB at least: free some "
                "space, or name another folder with --home"
            ) from error

    def write_pod_secret(self) -> None:
        write_private_file(self.pod_secret, make_secret() + "\n")

    @property
    def machine(self) -> Path:
        """What pods of this machine share, measured by `platform.machine`."""
        return self.root / "machine.json"

    @property
    def nodes(self) -> Path:
        """One folder per node: the disk tier of its pods."""
        return self.root / "nodes"

    @property
    def memory(self) -> Path:
        """Folder in tmpfs for the nodes' tier `host`; its name is unique to this root."""
        digest = hashlib.sha256(str(self.root.resolve()).encode()).hexdigest()[:12]
        return Path("/dev/shm") / f"pilotlight-{digest}"

    def clear_nodes(self) -> None:
        """Delete the model files of all nodes, on disk and in memory."""
        shutil.rmtree(self.nodes, ignore_errors=True)
        shutil.rmtree(self.memory, ignore_errors=True)

    @property
    def objects(self) -> Path:
        """Root folder of the object store: one folder per bucket."""
        return self.root / "objects"

    @property
    def checksums(self) -> Path:
        """ETags of the objects, so that each object is read once and not at every start."""
        return self.root / "sums"

    @property
    def redis(self) -> Path:
        """Working directory of the embedded Redis."""
        return self.root / "redis"

    def redis_password(self, role: str) -> Path:
        """The password of this run by which the role's processes log in to the embedded Redis."""
        return self.redis / f"{role}-password"

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Lock the directory until the context or the process ends; raises AlreadyRunning."""
        self.make_private()
        descriptor = os.open(self.lock_file, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            self._acquire(descriptor)
            self.state_file.unlink(missing_ok=True)  # left by a crash
            self.write_state(PlatformState(pid=os.getpid(), phase="starting"))
            try:
                yield
            finally:
                self.state_file.unlink(missing_ok=True)
                self.pod_secret.unlink(missing_ok=True)
        finally:
            os.close(descriptor)  # closing frees the lock

    def _acquire(self, descriptor: int) -> None:
        deadline_s = time.monotonic() + _LOCK_TIMEOUT_S
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() >= deadline_s:
                    raise self.already_running_error() from None
                time.sleep(0.01)

    def is_locked(self) -> bool:
        try:
            descriptor = os.open(self.lock_file, os.O_RDONLY)
        except (FileNotFoundError, NotADirectoryError):
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
        return False

    def read_state(self) -> PlatformState | None:
        """The state of the running platform; None if no platform runs. `pid` is 0 while unknown."""
        if not self.is_locked():
            return None
        try:
            return PlatformState.from_fields(json.loads(self.state_file.read_text()))
        except (OSError, ValueError, KeyError, TypeError):
            return PlatformState(pid=0, phase="starting")  # locked, and not yet written

    def require_ready(self) -> PlatformState:
        """The state of the platform; raises NotRunning unless it is ready."""
        state = self.read_state()
        if state is None:
            raise NotRunning(
                f"no platform runs in {self.root}: start one with `pilotlight up --detach`, "
                "or name one with --home, or with --redis-url and --gateway"
            )
        if state.phase != "ready":
            raise NotRunning(
                f"the platform in {self.root} (pid {state.pid}) is still starting; "
                f"its logs are in {self.logs}"
            )
        return state

    def write_state(self, state: PlatformState) -> None:
        """Replace the state file atomically; the caller holds the lock."""
        write_private_file(self.state_file, json.dumps(asdict(state), indent=2) + "\n")

    def already_running_error(self) -> AlreadyRunning:
        state = self.read_state() or PlatformState(pid=0, phase="starting")
        address = f" at {state.gateway}" if state.gateway else ""
        return AlreadyRunning(
            f"a platform is already running in {self.root}: pid {state.pid}, "
            f"{state.phase}{address}; stop it with `pilotlight down`, or use another --home"
        )
