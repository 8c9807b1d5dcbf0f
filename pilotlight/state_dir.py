"""The home folder of a platform: its lock, its state file, and where everything else lies.

The lock alone says whether a platform runs: the kernel frees it however the process ends, so a
state file left by a crash never passes for a running platform.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Self

from pilotlight.errors import AlreadyRunning, NotRunning

if TYPE_CHECKING:
    from types import TracebackType

_LOCK_PATIENCE_S = 0.3
"""A reader holds the lock for microseconds when it looks; a starter tries again for this long."""


@dataclass(frozen=True, slots=True)
class PlatformState:
    """What a running platform says of itself in `platform.json`."""

    pid: int
    phase: str
    """`starting` or `ready`."""
    gateway: str = ""
    redis_url: str = ""
    pool: str = "default"
    s3_endpoint: str | None = None
    autoscaler_metrics: str | None = None
    """Where the autoscaler's metrics are; None: none runs."""
    pods: tuple[str, ...] = field(default=())


@dataclass(frozen=True, slots=True)
class StateDir:
    """Paths under one home folder."""

    root: Path

    @classmethod
    def default(cls) -> StateDir:
        """`$PILOTLIGHT_HOME`, or `~/.pilotlight`."""
        named = os.environ.get("PILOTLIGHT_HOME")
        return cls(Path(named).expanduser() if named else Path.home() / ".pilotlight")

    @classmethod
    def of(cls, folder: Path | None) -> StateDir:
        """The home that a flag names, with an absolute path; else the default."""
        return cls(folder.expanduser().absolute()) if folder else cls.default()

    @property
    def lock_file(self) -> Path:
        """Held by the supervisor for as long as it lives."""
        return self.root / "lock"

    @property
    def state_file(self) -> Path:
        """`platform.json`; means nothing while the lock is free."""
        return self.root / "platform.json"

    @property
    def logs(self) -> Path:
        """One file per process."""
        return self.root / "logs"

    @property
    def nodes(self) -> Path:
        """One folder per node: the disk tier of its pods."""
        return self.root / "nodes"

    @property
    def memory(self) -> Path:
        """Where the nodes' tier `host` lies: memory, under a name of this home's own."""
        digest = hashlib.sha256(str(self.root.resolve()).encode()).hexdigest()[:12]
        return Path("/dev/shm") / f"pilotlight-{digest}"

    def clear_nodes(self) -> None:
        """Forget all model files, on disk and in memory."""
        shutil.rmtree(self.nodes, ignore_errors=True)
        shutil.rmtree(self.memory, ignore_errors=True)

    @property
    def objects(self) -> Path:
        """What the object store serves: a folder per bucket."""
        return self.root / "objects"

    @property
    def sums(self) -> Path:
        """ETags of the objects: each is read once, not at every start."""
        return self.root / "sums"

    @property
    def redis(self) -> Path:
        """Working folder of the embedded Redis."""
        return self.root / "redis"

    def is_locked(self) -> bool:
        """Whether a platform runs here."""
        try:
            descriptor = os.open(self.lock_file, os.O_RDONLY)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
        return False

    def running(self) -> PlatformState | None:
        """The state of the platform that runs here; None when none does."""
        if not self.is_locked():
            return None
        try:
            state = json.loads(self.state_file.read_text())
            return PlatformState(**{**state, "pods": tuple(state["pods"])})
        except (OSError, ValueError, KeyError, TypeError):
            return PlatformState(pid=0, phase="starting")  # the moment before the first write

    def require_running(self) -> PlatformState:
        """The state of the platform that is ready here, or `NotRunning` with what to do."""
        state = self.running()
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
        """Replace the state file in one step; the caller holds the lock."""
        aside = self.state_file.with_suffix(".tmp")
        aside.write_text(json.dumps(asdict(state), indent=2) + "\n")
        aside.replace(self.state_file)

    def already_running(self) -> AlreadyRunning:
        """The error that tells what runs here."""
        state = self.running() or PlatformState(pid=0, phase="starting")
        address = f" at {state.gateway}" if state.gateway else ""
        return AlreadyRunning(
            f"a platform is already running in {self.root}: pid {state.pid}, "
            f"{state.phase}{address}; stop it with `pilotlight down`, or use another --home"
        )


class HomeLock:
    """Holds a home folder for the life of this process, or of a `with` block."""

    def __init__(self, home: StateDir) -> None:
        self._home = home
        self._descriptor: int | None = None

    def __enter__(self) -> Self:
        self._home.root.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self._home.lock_file, os.O_RDWR | os.O_CREAT, 0o600)
        give_up_at_s = time.monotonic() + _LOCK_PATIENCE_S
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() < give_up_at_s:
                    time.sleep(0.01)
                    continue
                os.close(descriptor)
                raise self._home.already_running() from None
            break
        self._descriptor = descriptor
        self._home.state_file.unlink(missing_ok=True)  # left by a crash, if there is one
        self._home.write_state(PlatformState(pid=os.getpid(), phase="starting"))
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._home.state_file.unlink(missing_ok=True)
        if self._descriptor is not None:
            os.close(self._descriptor)  # closing frees the lock
            self._descriptor = None
