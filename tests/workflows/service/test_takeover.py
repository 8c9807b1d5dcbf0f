"""Another scheduler resumes the runs of one that is gone, from the journal."""

import signal
import time

import pytest
import redis

from tests import servers
from tests.workflows.service.harness import WorkflowHarness

pytestmark = pytest.mark.slow


def test_a_run_outlives_its_scheduler(harness: WorkflowHarness) -> None:
    name = harness.deploy(
        """
        @workflow(deadline="600s")
        async def long(text: str):
            first = (await model("writer")(text))["text"]
            drawn = random().random()
            second = (await model("hold-writer")(first + "b"))["text"]
            return [first, second, drawn]
        """
    )
    location = _begun(harness, name)
    executed = _executed(harness)
    harness.replace_scheduler("second")
    document = harness.released(location)
    assert document["status"] == "succeeded", document
    assert document["result"][:2] == ["a", "ab"]
    assert document["resumptions"] == 1
    assert _executed(harness) - executed <= 2, "the first step was in the journal"
    assert [step["state"] for step in document["steps"]] == ["done", "done"]


HELD = """
@workflow(deadline="600s")
async def held(text: str):
    first = (await model("writer")(text))["text"]
    return (await model("hold-writer")(first + "b"))["text"]
"""


def test_a_scheduler_goes_on_with_its_runs_after_a_pause(harness: WorkflowHarness) -> None:
    location = _begun(harness, harness.deploy(HELD))
    process = harness.scheduler.process
    process.send_signal(signal.SIGSTOP)
    try:
        servers.wait_until(lambda: _has_expired(harness, location), what="lease over")
    finally:
        process.send_signal(signal.SIGCONT)
    document = harness.released(location)
    assert (document["status"], document.get("result")) == ("succeeded", "ab"), document


def test_who_waits_at_a_paused_scheduler_gets_the_result_of_another(
    harness: WorkflowHarness,
) -> None:
    name, pool = harness.deploy(HELD), harness.pool
    waiting = pool.threads.submit(harness.result, name, {"text": "a"})
    servers.wait_until(lambda: len(leases(harness)) == 1, what="run begun")
    [identity] = leases(harness)
    location = f"{harness.url}/{name}/runs/{identity}"
    servers.wait_until(lambda: len(harness.status(location)["steps"]) == 2, what="second step")
    process = harness.scheduler.process
    process.send_signal(signal.SIGSTOP)
    try:
        with harness.other_scheduler("other") as other:
            servers.wait_until(
                lambda: "run taken over" in other.log_file.read_text(), what="run taken over"
            )
            process.send_signal(signal.SIGCONT)
            document = harness.released(location)
            assert (document["status"], document.get("result")) == ("succeeded", "ab"), document
            assert waiting.result(timeout=300) == "ab"
    finally:
        process.send_signal(signal.SIGCONT)


def test_a_key_finds_the_run_of_another_scheduler(harness: WorkflowHarness) -> None:
    name, pool = harness.deploy(HELD), harness.pool
    first = pool.threads.submit(harness.result, name, {"text": "a"}, idempotency_key="one")
    servers.wait_until(lambda: len(leases(harness)) == 1, what="run begun")
    [identity] = leases(harness)
    with harness.other_scheduler("asked-too") as other:
        headers = {"idempotency-key": "one", "prefer": "respond-async"}
        url = f"{other.url}/v1/workflows/{name}:run"
        response = pool.client.post(url, json={"text": "a"}, headers=headers)
        assert (response.status_code, response.json()["id"]) == (202, identity)
        waiting = pool.threads.submit(
            pool.client.post, url, json={"text": "a"}, headers={"idempotency-key": "one"}
        )
        harness.released(f"{harness.url}/{name}/runs/{identity}")
        answer = waiting.result(timeout=300).json()
        assert answer == {"id": identity, "result": "ab"}
        assert first.result(timeout=300) == "ab"


def test_a_run_is_resumed_although_the_registry_lost_an_entry_of_its_journal(
    harness: WorkflowHarness,
) -> None:
    """Else what the code got after the lost entry would be taken for what it got first."""
    name = harness.deploy(
        """
        @workflow(deadline="600s")
        async def gap(text: str):
            first = (await model("writer")(text))["text"]
            second = (await model("writer")(first + "b"))["text"]
            third = (await model("hold-writer")(second + "c"))["text"]
            return (await model("hold-writer")(third + "d"))["text"]
        """
    )
    location, pool, lost = harness.start(name, {"text": "a"}), harness.pool, b'{"delivered":0}'
    entries = f"run-entries:{location.rpartition('/')[2]}"
    with redis.Redis.from_url(pool.redis_url) as client:
        [key] = _keys_when_there(client, f"*{entries}")
        servers.wait_until(lambda: client.llen(key) == 4, what="two steps and their deliveries")
        assert client.lrem(key, 1, lost) == 1

        pods = harness.pods
        assert pods is not None
        servers.wait_until(lambda: pods.total("steps") == 1, what="third step at its pod")
        harness.release()
        servers.wait_until(
            lambda: len(harness.status(location)["steps"]) == 4, what="last step, which is held"
        )
        servers.wait_until(lambda: lost in client.lrange(key, 0, -1), what="journal written anew")
    harness.replace_scheduler("third")
    document = harness.released(location)
    assert (document["status"], document.get("result")) == ("succeeded", "abcd"), document


def _keys_when_there(client: redis.Redis, pattern: str) -> list[bytes]:
    servers.wait_until(lambda: list(client.scan_iter(pattern)), what=f"key {pattern}")
    return list(client.scan_iter(pattern))


def _begun(harness: WorkflowHarness, name: str) -> str:
    """A run whose second step is held, and whose first is in the journal."""
    location = harness.start(name, {"text": "a"})
    servers.wait_until(lambda: len(harness.status(location)["steps"]) == 2, what="second step")
    with redis.Redis.from_url(harness.pool.redis_url) as client:
        [key] = _keys_when_there(client, f"*run-entries:{location.rpartition('/')[2]}")
        servers.wait_until(lambda: client.llen(key) >= 2, what="first step and its delivery")
    return location


def leases(harness: WorkflowHarness) -> dict[str, float]:
    """Runs under way, with the ends of their leases."""
    with redis.Redis.from_url(harness.pool.redis_url, decode_responses=True) as client:
        keys = [
            each for each in client.scan_iter("*runs", _type="zset") if harness.pool.pool in each
        ]
        return {
            run: ends_ms
            for key in keys
            for run, ends_ms in client.zrange(key, 0, -1, withscores=True)
        }


def _has_expired(harness: WorkflowHarness, location: str) -> bool:
    return leases(harness)[location.rpartition("/")[2]] < 1000 * time.time()


def _executed(harness: WorkflowHarness) -> int:
    assert harness.pods is not None
    return harness.pods.total("executed")
