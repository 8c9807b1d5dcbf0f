"""Requests are freed as they end: those that wait for the garbage collector stop the pod meanwhile.

A collection of all objects of a pod, its libraries' among them, takes a tenth of a second or more.
"""

import contextlib
import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests import servers
from tests.runtime import rpc
from tests.runtime.conftest import Cluster
from tests.runtime.http import infer_texts, metric, post, predict, unanswered, wait_idle

pytestmark = pytest.mark.slow

REQUESTS = 5
GRPC_PORT = servers.free_port()
COMPLETION = {"model": "chat", "prompt": "babe", "max_tokens": 400, "min_tokens": 400}
COUNT_GARBAGE = """
import collections, gc, json, os, pathlib, signal

def begin(*_):
    gc.collect()
    gc.set_debug(gc.DEBUG_SAVEALL)
    pathlib.Path(os.environ["GARBAGE"], "begun").touch()

def end(*_):
    gc.collect()
    gc.set_debug(0)
    kinds = (type(each) for each in gc.garbage)
    found = collections.Counter(each.__module__ + "." + each.__qualname__ for each in kinds)
    gc.garbage.clear()
    made = pathlib.Path(os.environ["GARBAGE"], "made")
    made.write_text(json.dumps(found))
    made.rename(made.with_name("found"))

signal.signal(signal.SIGUSR1, begin)
signal.signal(signal.SIGUSR2, end)
"""
"""What a pod does in addition: Python runs `sitecustomize` in each process."""


@pytest.fixture(scope="module")
def garbage(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("garbage")


@pytest.fixture(scope="module")
def serving(
    garbage: Path,
    models: Path,
    redis: servers.RedisServer,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[servers.Pod]:
    (garbage / "sitecustomize.py").write_text(COUNT_GARBAGE)
    environment = {"PYTHONPATH": str(garbage), "GARBAGE": str(garbage)}
    with contextlib.ExitStack() as stack:
        counting = stack.enter_context(servers.forkserver(environment))
        folder = tmp_path_factory.mktemp("pods")
        cluster = Cluster(stack, forkserver=counting, redis_url=redis.url, folder=folder)
        cluster.declare("chat", models / "tiny-gpt2")
        cluster.declare("classes", models / "tiny-bert")
        cluster.declare("broken", models / "nowhere")
        strict = servers.copy_model(models / "tiny-gpt2", folder / "strict")
        template = "{{ raise_exception('roles must alternate') }}"
        (strict / "chat_template.jinja").write_text(template)
        cluster.declare("strict", strict)
        pod = cluster.pod(grpc_port=GRPC_PORT, slots=2, allow_simulated_work=True)
        for load in (answered, completed, refused_by_its_template):
            load(pod)
        yield pod


def answered(pod: servers.Pod) -> None:
    assert predict(pod.url, "classes", "fox").status_code == 200
    assert infer_texts(pod.url, "classes", "fox").status_code == 200


def completed(pod: servers.Pod) -> None:
    body = {**COMPLETION, "max_tokens": 3, "min_tokens": 3, "n": 2}
    assert post(f"{pod.url}/openai/v1/completions", body).status_code == 200


def invalid(pod: servers.Pod) -> None:
    assert predict(pod.url, "classes", 3).status_code == 400
    assert predict(pod.url, "nothing", "fox").status_code == 404


def refused_over_grpc(pod: servers.Pod) -> None:
    request = rpc.infer_texts("default~nothing", "fox")
    assert rpc.refused(GRPC_PORT, "ModelInfer", request).code().name == "NOT_FOUND"


def refused_by_its_template(pod: servers.Pod) -> None:
    body = {"model": "strict", "messages": [{"role": "user", "content": "fox"}]}
    assert post(f"{pod.url}/openai/v1/chat/completions", body).status_code == 400


def unloadable(pod: servers.Pod) -> None:
    url, texts = pod.url, {"model": "broken", "input": "fox"}
    assert predict(url, "broken", "fox").status_code == 503
    assert post(f"{url}/openai/v1/embeddings", texts).status_code == 503
    assert post(f"{url}/v2/repository/models/default~broken/load").status_code == 503


def late(pod: servers.Pod) -> None:
    assert predict(pod.url, "classes", "fox", deadline_ms="0").status_code == 504


def late_in_the_queue(pod: servers.Pod) -> None:
    times = {"simulate": "preprocess=0.2", "deadline_ms": "100"}
    assert predict(pod.url, "classes", "fox", **times).status_code == 504


def late_while_it_generates(pod: servers.Pod) -> None:
    url, late = f"{pod.url}/openai/v1/completions", {"x_pilotlight_deadline_ms": "100"}
    assert post(url, COMPLETION, **late).status_code == 504
    assert post(url, {**COMPLETION, "n": 2}, **late).status_code == 504


def left(pod: servers.Pod) -> None:
    for choices in (1, 2):
        body = {**COMPLETION, "n": choices}
        with unanswered(f"{pod.url}/openai/v1/completions", body):
            servers.wait_until(lambda: metric(pod.url, "pilotlight_generations"))
        wait_idle(pod)


def refused(pod: servers.Pod) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(2):
            taken = {"x_pilotlight_simulate": "postprocess=60"}
            url = f"{pod.url}/v1/models/default~classes:predict"
            stack.enter_context(unanswered(url, {"instances": ["fox"]}, **taken))
        servers.wait_until(lambda: metric(pod.url, "pilotlight_pod_slots_used") == 2)
        assert predict(pod.url, "classes", "fox").status_code == 429
        assert post(f"{pod.url}/openai/v1/completions", COMPLETION).status_code == 429
    wait_idle(pod)


@pytest.mark.parametrize(
    "ask",
    [
        answered,
        completed,
        invalid,
        unloadable,
        refused,
        left,
        refused_over_grpc,
        refused_by_its_template,
        late,
        late_in_the_queue,
        late_while_it_generates,
    ],
)
def test_a_request_is_freed_at_its_end(
    ask: Callable[[servers.Pod], None], serving: servers.Pod, garbage: Path
) -> None:
    ask(serving)
    signalled(serving, signal.SIGUSR1, garbage / "begun")
    for _ in range(REQUESTS):
        ask(serving)
    signalled(serving, signal.SIGUSR2, garbage / "found")
    found = json.loads((garbage / "found").read_text())
    assert not {kind: count for kind, count in found.items() if kind.startswith("runtime.")}


def signalled(pod: servers.Pod, number: int, done: Path) -> None:
    done.unlink(missing_ok=True)
    os.kill(pod.pid, number)
    servers.wait_until(done.exists)
