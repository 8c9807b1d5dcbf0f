"""A container's probes and hooks: HTTP, TCP and commands, from inside the pod's network."""

import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx

AGENT = {"user-agent": "kube-probe/1.34"}
"""Header of a kubelet's probes, by which Knative's programs recognise them."""


@dataclass(frozen=True, slots=True)
class Target:
    """Access to a container: its pod's address, named ports, and the prefix of commands in it."""

    address: str
    ports: Mapping[str, int]
    enter: Sequence[str]
    environment: Mapping[str, str]

    def port(self, wanted: int | str) -> int:
        """A port by number or name."""
        return self.ports[wanted] if isinstance(wanted, str) else wanted


def act(handler: Mapping[str, Any], target: Target, *, timeout_s: float) -> str:
    """Run a probe or hook; returns an empty text, or the reason of its failure."""
    try:
        if "httpGet" in handler:
            return _http_get(handler["httpGet"], target, timeout_s=timeout_s)
        if "tcpSocket" in handler:
            address = (target.address, target.port(handler["tcpSocket"]["port"]))
            socket.create_connection(address, timeout=timeout_s).close()
        elif "exec" in handler:
            subprocess.run(
                [*target.enter, *handler["exec"]["command"]],
                env=dict(target.environment),
                check=True,
                capture_output=True,
                timeout=timeout_s,
            )
        elif "sleep" in handler:
            time.sleep(handler["sleep"]["seconds"])
        else:
            return f"handlers of kind {', '.join(sorted(handler))} are not supported"
    except (OSError, httpx.HTTPError, subprocess.SubprocessError) as error:
        return str(error) or type(error).__name__
    return ""


def _http_get(get: Mapping[str, Any], target: Target, *, timeout_s: float) -> str:
    host = get.get("host") or target.address
    scheme = get.get("scheme", "HTTP").lower()
    url = f"{scheme}://{host}:{target.port(get['port'])}{get.get('path', '/')}"
    headers = AGENT | {item["name"]: item["value"] for item in get.get("httpHeaders", [])}
    answer = httpx.get(url, headers=headers, timeout=timeout_s, trust_env=False, verify=False)
    return "" if answer.status_code < 400 else f"HTTP {answer.status_code}: {answer.text[:200]}"


class Probe:
    """One probe of one container: its last result, and how often in a row."""

    def __init__(self, spec: Mapping[str, Any], target: Target, *, started_s: float) -> None:
        self._spec = spec
        self._target = target
        self._next_s = started_s + float(spec.get("initialDelaySeconds", 0))
        self._in_a_row = 0
        self._last = False
        self.has_passed = False
        self.has_failed = False
        self.message = ""

    def tick(self, now_s: float) -> None:
        """Run the probe if it is due."""
        if now_s < self._next_s:
            return
        self._next_s = now_s + float(self._spec.get("periodSeconds", 10))
        self.message = act(
            self._spec, self._target, timeout_s=float(self._spec.get("timeoutSeconds", 1))
        )
        is_good = not self.message
        self._in_a_row = self._in_a_row + 1 if is_good == self._last else 1
        self._last = is_good
        if is_good and self._in_a_row >= self._spec.get("successThreshold", 1):
            self.has_passed, self.has_failed = True, False
        if not is_good and self._in_a_row >= self._spec.get("failureThreshold", 3):
            self.has_passed, self.has_failed = False, True
