"""`python -m tests.hostile.two_tenants --attempts 10000`: one tenant's attempts on another's model.

The tenant `red` has keys and a model; `blue` has a model, a request that can be explained, and keys
that nobody else has. Each attempt is a channel, a mutation of the names in it and a credential, all
drawn from a seed. The expected result: no request reaches a pod under a name of `blue`, and none of
a path that only `blue` or the operator may use is answered with success, or names blue's model.
gRPC calls go to a pod (`tenant_grpc.py`), storage URIs to a pod's disk cache (`tenant_storage.py`),
workflows to a scheduler that has one of blue's, with a run.
"""

import argparse
import base64
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import unquote

import httpx

from tests import servers
from tests.gateway.gateway_harness import GatewayHarness, PodProcess, exchange_bytes
from tests.hostile.mutations import escape_one
from tests.hostile.tenant_grpc import start_grpc
from tests.hostile.tenant_storage import start_storage
from tests.workflows.service.harness import running_scheduler

SECRET: Final = "hidden"
"""Blue's model; attempts that ask for it by name do not count its echo in an error."""
KEYS: Final = {"red": "red-key-red-key-red", "blue": "blue-key-blue-key-b", "_operator": "o" * 20}
REQUEST_ID: Final = "request-of-blue"
_WORKFLOW: Final = """
from pilotlight.workflow import workflow

@workflow
async def hidden():
    return "hidden"
"""
BATCH: Final = 100
CHANNELS: Final = 8
_TO_BLUE: Final = (
    "/serving/blue/hidden/v1/models/hidden:predict", "/serving/blue/hidden/v2/models/hidden/infer",
    "/serving/blue/hidden/openai/v1/completions", "/serving/blue/hidden/openai/v1/embeddings",
    "/v1/models/blue~hidden:predict", "/v2/models/blue~hidden/infer", "/v1/models/hidden:predict",
    "/serving/red/own/v1/models/hidden:predict", "/serving/red/hidden/v1/models/hidden:predict",
    "/serving/red/blue~hidden/v1/models/blue~hidden:predict", "/v2/models/hidden/versions/1/infer",
    "/serving/red/own/../../blue/hidden/v1/models/hidden:predict",
    "/serving/red/own/serving/blue/hidden/v1/models/hidden:predict",
    "/serving/blue/hidden/v1/models/own:predict", "/serving/red;blue/hidden/v2/models/hidden/infer",
    "/serving/blue/hidden/v1/workflows/hidden:run", "/serving/blue/hidden/", "/serving/blue/hidden",
    "/v1/workflows/hidden:run", "/serving/default/hidden/v1/workflows/hidden:run",
)  # fmt: skip
_READING: Final = (
    "/serving/blue/hidden/v1/models", "/serving/blue/hidden/v1/models/hidden",
    "/serving/blue/hidden/v2/models", "/serving/blue/hidden/v2/models/hidden/ready",
    "/serving/blue/hidden/openai/v1/models", "/serving/blue/hidden/v2/repository/index",
    f"/pilotlight/v1/explain/{REQUEST_ID}", "/pilotlight/v1/idle-memory", "/metrics", "/docs",
    "/serving/blue/hidden/v1/workflows", "/serving/blue/hidden/v1/workflows/hidden/runs/RUN",
    "/v1/workflows/hidden/runs/RUN", "/v1/workflows/-/runs/RUN",
    f"/console/requests/{REQUEST_ID}", "/console/models/blue/hidden", "/pilotlight/v1/targets",
    "/openapi.json", f"/serving/red/own/pilotlight/v1/explain/{REQUEST_ID}",
    "/serving/red/own/metrics", "/serving/red/own/v1/../../../metrics", "/v1/models/../../metrics",
    f"/openai/v1/../../pilotlight/v1/explain/{REQUEST_ID}", "/v2/../metrics",
    "/v2/models/../../docs",
    "/v1/../pilotlight/v1/idle-memory", "/logs", "/v2/logging", "/v2/repository/models/hidden/load",
)  # fmt: skip
_OF_NO_TENANT: Final = (
    "/v1/models/hidden:predict", "/v2/models/hidden/infer", "/v1/models", "/openai/v1/completions",
    "/openai/v1/models", "/v2/models/hidden",
)  # fmt: skip
_BY_BODY: Final = (
    "/openai/v1/completions",
    "/openai/v1/chat/completions",
    "/serving/red/own/openai/v1/embeddings",
)
_HOSTS: Final = (
    "localhost", "hidden.blue.example.com", "hidden-predictor.blue.svc.cluster.local",
    "hidden-blue.example.com", "HIDDEN.BLUE.example.com", "own.red.example.com", "blue",
    "hidden.blue",
    "hidden.blue.example.com:8080", "red.own.hidden.blue",
)  # fmt: skip
_BODIES: Final = (
    b'{"instances": [1]}', b'{"model": "hidden", "prompt": "x"}', b'{"model": "blue~hidden"}',
    b'{"model": "blue/hidden", "prompt": "x"}', b'{"model": "own", "model": "hidden"}',
    b'{"x": {"model": "own"}, "model": "blue~hidden"}', b'{"model": "\\u0062lue~hidden"}',
    b'{"model_name": "blue~hidden", "inputs": []}', b"", b'{"model": ["hidden"]}',
)  # fmt: skip
_HEADERS: Final = (
    "x-pilotlight-model-name: blue~hidden", "x-pilotlight-generation: 1",
    "x-pilotlight-stage: infer",
    "x-pilotlight-predict: 127.0.0.1:1", "x-forwarded-host: hidden.blue.example.com",
    "x-tenant: blue",
    "x-original-url: /serving/blue/hidden/v1/models/hidden:predict", "mm-model-id: hidden",
    "x-pilotlight-reservation: x", "x-pilotlight-policy: random", "x-http-method-override: PUT",
    "forwarded: host=hidden.blue.example.com", "kserve-namespace: blue", "x-namespace: blue",
    "connection: authorization", "connection: x-api-key, host", "upgrade: h2c",
)  # fmt: skip


def _escape_one(draws: random.Random, path: str) -> str:
    return escape_one(draws, path, first=1)


_MUTATIONS: Final[tuple[Callable[[random.Random, str], str], ...]] = (
    lambda _, path: path,
    lambda _, path: path,
    _escape_one,
    lambda draws, path: _escape_one(draws, _escape_one(draws, path)),
    lambda draws, path: path.replace("/", "%2f", draws.randrange(1, 4)),
    lambda draws, path: path.replace("/", "//", draws.randrange(1, 4)),
    lambda _, path: path + "/",
    lambda _, path: path + "?model=hidden",
    lambda _, path: f"http://hidden.blue.example.com{path}",
    lambda _, path: path.replace("blue", "BLUE"),
    lambda _, path: path.replace("hidden", "hidden%00"),
    lambda _, path: path.replace("~", "%7e").replace("/v1/", "/./v1/"),
    lambda _, path: path.replace("/serving/", "/serving/red/own/../../"),
    lambda _, path: path.replace("blue", "red%2f..%2fblue"),
    lambda _, path: path.replace(":predict", "%3Apredict"),
)


def _basic(user: str, password: str) -> str:
    """As a browser sends what is typed for the console."""
    return f"authorization: Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}"


def _credentials(draws: random.Random) -> list[str]:
    red, wrong = KEYS["red"], KEYS["blue"][:-1]
    return draws.choice(
        [
            [f"authorization: Bearer {red}"],
            [f"x-api-key: {red}"],
            [],
            ["x-api-key: "],
            [f"x-api-key: {wrong}"],
            [f"authorization: Bearer {red}", f"x-api-key: {wrong}"],
            [f"x-api-key: {red}", f"x-api-key: {wrong}"],
            [f"authorization: Basic {red}"],
            [f"authorization: Bearer {KEYS['blue'].upper()}"],
            ["authorization: Bearer _operator"],
            [f"x-api-key: {red}{KEYS['blue'][:8]}"],
            ["authorization: Bearer e30.e30."],
            [_basic("red", red)],
            [_basic("blue", red)],
            [_basic("", red)],
            [_basic("_operator", red)],
            [_basic("blue", wrong)],
            [_basic("red:blue", red)],
            [f"x-api-key: {red},{wrong}"],
            ["authorization: Bearer null"],
            ["cookie: tenant=blue"],
        ]
    )


@dataclass(frozen=True)
class Attempt:
    channel: str
    content: bytes

    @property
    def is_echoed(self) -> bool:
        """The attempt itself contains a name of blue's, which an error may repeat."""
        text = unquote(unquote(self.content.lower().decode("latin-1")))
        return SECRET in text or "blue" in text


def draw_attempt(draws: random.Random, run: str) -> Attempt:
    """`run`: the identity of a run of blue's workflow."""
    channel = draws.choice(["path", "host", "header", "body", "reading", "names"])
    path = draws.choice(_READING if channel == "reading" else _TO_BLUE)
    if channel == "host":
        path = draws.choice(_OF_NO_TENANT)
    if channel == "body":
        path = draws.choice(_BY_BODY)
    if channel == "names":
        name = "".join(draws.choice("hidenblu~/.%-:@ ") for _ in range(draws.randrange(1, 14)))
        path = f"/serving/{name}/hidden/v1/models/hidden:predict".replace(" ", "%20")
    path = draws.choice(_MUTATIONS)(draws, path.replace("RUN", run))
    method = draws.choice(
        ["GET", "GET", "POST", "HEAD"] if channel == "reading" else ["POST"] * 5 + ["GET"]
    )
    body = draws.choice(_BODIES)
    lines = [f"{method} {path} HTTP/1.1", f"host: {draws.choice(_HOSTS)}", *_credentials(draws)]
    if channel == "header" or draws.random() < 0.2:
        lines += draws.sample(_HEADERS, 2)
    lines += [f"content-length: {len(body)}", "connection: close", "", ""]
    return Attempt(channel, "\r\n".join(lines).encode("latin-1", "replace") + body)


def problem_of(attempt: Attempt, response: bytes) -> str:
    """What the response discloses; empty: nothing."""
    head, _, body = response.partition(b"\r\n\r\n")
    status = head[9:12].decode("latin-1")
    if not status.isdigit():
        return f"no response: {response[:100]!r}"
    if status.startswith("5"):
        return f"status {status}"
    is_named = SECRET.encode() in body.lower() or b"blue" in body.lower()
    if body and attempt.content.endswith(body):
        return ""  # the fake pods' response: for red's own model, by their paths
    if is_named and (status.startswith("2") or not attempt.is_echoed):
        return f"status {status} names the model: {body[:300]!r}"
    if status.startswith("2") and b"# HELP" in body:
        return "the metrics"
    return ""


def run(count: int, seed: int) -> list[str]:
    """Attempts that pass, with what they got."""
    draws = random.Random(seed)
    statuses: Counter[str] = Counter()
    problems: list[str] = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        harness, pods = _start(stack, folder)
        workflow_run = _run_workflow(harness)
        pod = start_grpc(stack, folder / "grpc", harness.redis_url)
        storage = start_storage(stack, folder / "storage")
        for begin in range(0, count, BATCH):
            size = min(BATCH, count - begin)
            of_each = size // CHANNELS
            for _ in range(of_each):
                uri, call = storage.draw(draws), pod.draw(draws)
                outcomes = ("storage", *storage.attempt(uri)), ("grpc", *pod.attempt(call))
                for drawn, (channel, outcome, problem) in zip((uri, call), outcomes, strict=True):
                    statuses[f"{channel} {outcome}"] += 1
                    problems += [f"{problem}: {drawn!r}"] if problem else []
            batch = [draw_attempt(draws, workflow_run) for _ in range(size - 2 * of_each)]
            for attempt in batch:
                response = exchange_bytes(harness.gateway.port, attempt.content, timeout_s=30)
                statuses[f"{attempt.channel} {response[9:12].decode('latin-1')}"] += 1
                if problem := problem_of(attempt, response):
                    problems.append(f"{problem}: {attempt.content!r}")
            if foreign := _foreign_paths(pods):
                problems.append(f"pods were asked for {foreign} by one of {batch}")
            if problems:
                break
        problems += [problem] if (problem := pod.end()) else []
        log = harness.gateway.log
        if "Traceback" in log or any(key in log for key in KEYS.values()):
            problems.append(f"the gateway's log has a traceback or a key: {log[-2000:]}")
    print(f"{sum(statuses.values())} attempts, seed {seed}: {dict(sorted(statuses.items()))}")
    return problems


def _start(stack: ExitStack, folder: Path) -> tuple[GatewayHarness, PodProcess]:
    """A guarded gateway whose pods have served nobody, and a request of blue's to be explained."""
    keys = folder / "keys"
    keys.mkdir()
    for tenant, key in KEYS.items():
        (keys / tenant).write_text(key)
    redis = stack.enter_context(servers.redis_server(folder / "redis"))
    port = servers.free_port()
    gateway = stack.enter_context(
        servers.gateway(
            folder,
            redis_url=redis.url,
            pool="tenants",
            api_keys=keys,
            workflows_url=f"http://127.0.0.1:{port}",
        )
    )
    stack.enter_context(
        running_scheduler(folder / "scheduler", redis.url, "tenants", gateway.url, port=port)
    )
    client = stack.enter_context(httpx.Client(trust_env=False, timeout=60))
    threads = ThreadPoolExecutor(1)
    harness = GatewayHarness(redis.url, "tenants", gateway, client, stack, threads)
    own, first = harness.declare("own", namespace="red"), harness.declare("first", namespace="blue")
    hidden = harness.declare(SECRET, namespace="blue")
    pods = harness.start_pods("pod-a", slots=8, warm=(own, first, hidden))
    served = harness.predict(first, x_api_key=KEYS["blue"], x_request_id=REQUEST_ID)
    assert served.status_code == 200, served.text
    explain = f"{gateway.url}/pilotlight/v1/explain/{REQUEST_ID}"
    assert client.get(explain, headers={"x-api-key": KEYS["_operator"]}).status_code == 200
    return harness, pods


def _run_workflow(harness: GatewayHarness) -> str:
    """Deploy a workflow of blue's and run it once; the run's identity."""
    url = f"{harness.gateway.url}/serving/blue/hidden/v1/workflows/hidden"
    headers = {"x-api-key": KEYS["blue"]}
    harness.client.put(url, content=_WORKFLOW, headers=headers).raise_for_status()
    begun = harness.client.post(f"{url}:run", headers={**headers, "prefer": "respond-async"})
    assert begun.status_code == 202, begun.text
    identity = begun.headers["location"].rpartition("/")[2]
    status = harness.client.get(f"{url}/runs/{identity}", headers=headers)
    assert status.status_code == 200, status.text
    return str(identity)


def _foreign_paths(pods: PodProcess) -> list[str]:
    return [path for path in pods.counts("pod-a")["paths"] if SECRET in path]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--attempts", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    arguments = parser.parse_args()
    problems = run(arguments.attempts, arguments.seed)
    for problem in problems:
        print(f"PASSED: {problem}")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
