"""Who is compared, and how each is started.

Every contestant is started anew for every setting and repeat. Those that need CPU time when nobody
asks them anything run by themselves, so that they disturb no other. All of them answer the same
constant and are asked the same way.
"""

from __future__ import annotations

import contextlib
import shutil
import sys
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from benchmarks.peers import peers_python
from benchmarks.proxy.pod import ANSWER, MODEL, NAME, TIMING
from benchmarks.proxy.processes import Running, answer_of, start
from pilotlight.platform.bundled_servers import redis_command
from pilotlight.platform.processes import free_port

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

PATH: Final = f"/v1/models/{MODEL}:predict"
TINY: Final = b'{"instances":[1]}'
_START_S: Final = 60.0


class Setting(StrEnum):
    """Where processes run."""

    SHARED = "S"
    """The contestant and the pod behind it on one core, the load generator on the other."""
    ALONE = "G"
    """The contestant alone on one core; pod (nginx, where there is one), Redis, generator not."""
    BOTH = "both"
    """For contestants of many processes: everything on both cores."""


@dataclass(frozen=True, slots=True)
class Place:
    """Cores and files of one round."""

    setting: Setting
    contestant_cores: set[int]
    pod_cores: set[int]
    generator_core: int
    folder: Path


@dataclass(slots=True)
class Round:
    """A contestant that is ready for load."""

    url: str
    contestant: Running
    others: list[Running]


@dataclass(frozen=True, slots=True)
class Contestant:
    """One way to serve the request."""

    name: str
    begin: Callable[[contextlib.ExitStack, Place], Round]
    settings: tuple[Setting, ...]
    missing: str | None = None
    """Why it cannot take part here."""
    is_slow: bool = False
    """Left out by `--quick`."""
    is_calm: bool = True
    """Needs next to no CPU time while idle."""


@contextlib.contextmanager
def running(contestant: Contestant, place: Place) -> Iterator[Round]:
    """The contestant, ready for load; ended with everything around it. Raises StartFailed."""
    with contextlib.ExitStack() as stack:
        ready = contestant.begin(stack, place)
        ready.contestant.wait_until(lambda: _answers(ready.url), timeout_s=_START_S)
        yield ready


def _answers(url: str) -> bool:
    status, body = answer_of(url, TINY)
    return status == 200 and b"predictions" in body


def _begin(
    stack: contextlib.ExitStack,
    place: Place,
    name: str,
    command: list[str],
    cores: set[int],
    environment: dict[str, str] | None = None,
) -> Running:
    begun = start(command, cores=cores, log=place.folder / f"{name}.log", environment=environment)
    stack.callback(begun.end)
    return begun


def _python(module: str, *arguments: str) -> list[str]:
    return [sys.executable, "-m", module, *arguments]


# The pod behind the proxies


def _pod(stack: contextlib.ExitStack, place: Place) -> tuple[Running, str]:
    """A running pod and its address: uvicorn, or nginx where it must not be the limit."""
    port = free_port()
    if place.setting is Setting.ALONE and shutil.which("nginx"):
        config = _nginx_config(place.folder / "pod", port, _NGINX_POD)
        command = ["nginx", "-c", str(config), "-p", str(config.parent)]
    else:
        command = _python("benchmarks.proxy.pod", "--port", str(port))
    pod = _begin(stack, place, "pod", command, place.pod_cores)
    address = f"127.0.0.1:{port}"
    pod.wait_until(lambda: _answers(f"http://{address}{PATH}"), timeout_s=_START_S)
    return pod, address


def _direct(stack: contextlib.ExitStack, place: Place) -> Round:
    pod, address = _pod(stack, place)
    return Round(f"http://{address}{PATH}", pod, [])


# Pilotlight


def _pilotlight(stack: contextlib.ExitStack, place: Place) -> Round:
    redis_port, port = free_port(), free_port()
    redis_url = f"redis://127.0.0.1:{redis_port}"
    aside = {place.generator_core}
    command = redis_command(redis_port, place.folder)
    redis = _begin(stack, place, "redis", command, aside)
    redis.wait_until(lambda: b"Ready to accept" in redis.log.read_bytes(), timeout_s=10)
    pod, address = _pod(stack, place)
    command = _python("benchmarks.proxy.pod", "--address", address, "--redis-url", redis_url)
    registrar = _begin(stack, place, "registrar", command, aside)
    command = _python("gateway", "--redis-url", redis_url, "--port", str(port))
    gateway = _begin(stack, place, "gateway", command, place.contestant_cores)
    return Round(f"http://127.0.0.1:{port}{PATH}", gateway, [redis, pod, registrar])


# Proxies


def _nginx(stack: contextlib.ExitStack, place: Place) -> Round:
    pod, address = _pod(stack, place)
    port = free_port()
    config = _nginx_config(place.folder / "nginx", port, _NGINX_PROXY.replace("POD", address))
    command = ["nginx", "-c", str(config), "-p", str(config.parent)]
    nginx = _begin(stack, place, "nginx", command, place.contestant_cores)
    return Round(f"http://127.0.0.1:{port}{PATH}", nginx, [pod])


def _nginx_config(folder: Path, port: int, http: str) -> Path:
    folder.mkdir(parents=True)
    config = folder / "nginx.conf"
    config.write_text(_NGINX.replace("FOLDER", str(folder)).replace("HTTP", http)
                      .replace("PORT", str(port)))  # fmt: skip
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
      return 200 '{ANSWER.decode()}';
    }}
  }}
"""
_NGINX_PROXY: Final = """
  upstream pod { server POD; keepalive 1024; keepalive_requests 100000000; }
  server {
    listen 127.0.0.1:PORT backlog=4096;
    location / { proxy_pass http://pod; proxy_http_version 1.1; proxy_set_header Connection ""; }
  }
"""


def _haproxy(stack: contextlib.ExitStack, place: Place) -> Round:
    pod, address = _pod(stack, place)
    port = free_port()
    config = place.folder / "haproxy.cfg"
    config.write_text(_HAPROXY.replace("PORT", str(port)).replace("POD", address))
    command = ["haproxy", "-db", "-f", str(config)]
    haproxy = _begin(stack, place, "haproxy", command, place.contestant_cores)
    return Round(f"http://127.0.0.1:{port}{PATH}", haproxy, [pod])


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


def _python_proxy(module: str) -> Callable[[contextlib.ExitStack, Place], Round]:
    def begin(stack: contextlib.ExitStack, place: Place) -> Round:
        pod, address = _pod(stack, place)
        port = free_port()
        command = _python(f"benchmarks.proxy.peers.{module}", str(port), f"http://{address}")
        proxy = _begin(stack, place, module, command, place.contestant_cores)
        return Round(f"http://127.0.0.1:{port}{PATH}", proxy, [pod])

    return begin


# Those that serve themselves


def _kserve(stack: contextlib.ExitStack, place: Place) -> Round:
    port = free_port()
    command = _python("benchmarks.proxy.peers.kserve_model", str(port))
    server = _begin(stack, place, "kserve", command, place.contestant_cores)
    return Round(f"http://127.0.0.1:{port}{PATH}", server, [])


def _lit_serve(stack: contextlib.ExitStack, place: Place) -> Round:
    port = free_port()
    command = [str(peers_python()), "-m", "benchmarks.proxy.peers.lit_serve", str(port), PATH]
    server = _begin(stack, place, "litserve", command, place.contestant_cores)
    return Round(f"http://127.0.0.1:{port}{PATH}", server, [])


def _ray_serve(*, behind_haproxy: bool) -> Callable[[contextlib.ExitStack, Place], Round]:
    def begin(stack: contextlib.ExitStack, place: Place) -> Round:
        port = free_port()
        folder = place.folder / "ray"
        environment = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_SERVE_LOG_TO_STDERR": "0"}
        if behind_haproxy:
            environment |= _ray_haproxy(place.folder)
        python = str(peers_python())
        command = [python, "-m", "benchmarks.proxy.peers.ray_serve", str(port), str(folder)]
        server = _begin(stack, place, "ray", command, place.contestant_cores, environment)
        server.wait_until(lambda: b"ready" in server.log.read_bytes(), timeout_s=_START_S)
        return Round(f"http://127.0.0.1:{port}{PATH}", server, [])

    return begin


def _ray_haproxy(folder: Path) -> dict[str, str]:
    """Its files in our folder; Ray adds 57 characters, and a socket's path may have 97."""
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
NGINX: Final = "nginx"
RAY_HAPROXY: Final = "Ray Serve, HAProxy ingress"
PYTHON_PEERS: Final = (
    "Starlette + aiohttp", "FastAPI + httpx", "KServe ModelServer", "LitServe",
    "Ray Serve, default proxy", RAY_HAPROXY,
)  # fmt: skip


def contestants() -> list[Contestant]:
    """Everyone, with the reason for whoever cannot take part here."""
    proxy = (Setting.SHARED, Setting.ALONE)
    alone = (Setting.SHARED,)
    many = (Setting.SHARED, Setting.BOTH)
    no_peers = None if peers_python() else "python -m benchmarks.peers install was not run"
    return [
        Contestant(DIRECT, _direct, proxy),
        Contestant(PILOTLIGHT, _pilotlight, proxy),
        Contestant(NGINX, _nginx, proxy, _absent("nginx")),
        Contestant("HAProxy", _haproxy, proxy, _absent("haproxy")),
        Contestant("Starlette + aiohttp", _python_proxy("starlette_aiohttp"), proxy),
        Contestant("FastAPI + httpx", _python_proxy("fastapi_httpx"), proxy),
        Contestant("KServe ModelServer", _kserve, alone, is_slow=True),
        Contestant("LitServe", _lit_serve, alone, no_peers, is_slow=True, is_calm=False),
        Contestant("Ray Serve, default proxy", _ray_serve(behind_haproxy=False), many, no_peers,
                   is_slow=True, is_calm=False),
        Contestant(RAY_HAPROXY, _ray_serve(behind_haproxy=True), many, no_peers,
                   is_slow=True, is_calm=False),
    ]  # fmt: skip


def _absent(program: str) -> str | None:
    return None if shutil.which(program) else f"{program} is not on the PATH"
