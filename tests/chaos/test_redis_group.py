"""When the campaign's Redis is whole again, with a real Sentinel."""

import signal
from pathlib import Path

import pytest
import redis

from tests import servers
from tests.chaos.redis_group import RedisGroup


@pytest.mark.slow
def test_a_master_whose_replica_was_promoted_is_not_healthy(tmp_path: Path) -> None:
    """Sentinel names the old master until it has seen the promotion; writes there are lost."""
    group = RedisGroup(tmp_path)
    try:
        group.start()
        old = group.master()
        new = next(each for each in group.members if each is not old)
        assert group.sentinel is not None
        group.sentinel.send_signal(signal.SIGSTOP)
        with redis.Redis(port=new.port) as client:
            client.execute_command("REPLICAOF", "NO", "ONE")
        servers.wait_until(lambda: not group.is_healthy(), what="the old master has no replica")
        with redis.Redis(port=old.port) as client:
            assert client.info("replication")["role"] == "master"
    finally:
        group.stop()
