"""The real control plane: etcd, API server, controller manager and scheduler, with RBAC.

All of them listen in the network namespace of the suite, so ports are fixed and unreachable from
outside.
"""

import contextlib
import ssl
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from tests.kubernetes.audit import audit_flags
from tests.kubernetes.certificates import Authority, write_key
from tests.kubernetes.kubectl import Kubectl
from tests.kubernetes.places import (
    API_PORT,
    API_SERVICE_ADDRESS,
    API_URL,
    HOST_ADDRESS,
    SERVICE_NETWORK,
    TIMEOUT_S,
    program,
)
from tests.kubernetes.processes import Program
from tests.servers import wait_until

ETCD_URL = "http://127.0.0.1:2379"
ETCD_PEER_URL = "http://127.0.0.1:2380"
SCALE_TO_ZERO = "--feature-gates=HPAScaleToZero=true"
"""On by default from Kubernetes 1.37 on."""
API_NAMES = (
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
    "kubernetes.default.svc.cluster.local",
    "localhost",
    "127.0.0.1",
    HOST_ADDRESS,
    API_SERVICE_ADDRESS,
)


@dataclass
class ControlPlane:
    """A running control plane; `admin` has all rights."""

    folder: Path
    authority: Authority
    admin: Kubectl
    programs: dict[str, Program] = field(default_factory=dict)

    def run(self, name: str, command: Sequence[str], **environment: str) -> Program:
        """Start one more program, which ends with the control plane."""
        started = Program(name, command, self.folder / f"{name}.log", environment)
        self.programs[name] = started
        started.start()
        return started

    def stop(self, name: str) -> None:
        """Kill one program, which is no longer required to run."""
        self.programs.pop(name).kill()

    def wait(self, condition: str, url: str) -> None:
        """Wait until an address returns 200; raises RuntimeError if a program ended."""
        wait_until(lambda: self._answers(url), timeout_s=TIMEOUT_S, what=condition)

    def _answers(self, url: str) -> bool:
        self.require_running()
        context = ssl.create_default_context(cafile=str(self.authority.certificate))
        if "127.0.0.1" in url:  # the programs use self-signed certificates
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        answer = httpx.get(url, verify=context, trust_env=False, timeout=5)
        return answer.status_code == 200

    def require_running(self) -> None:
        """Raises RuntimeError, with the end of its log, for a program that has ended."""
        for started in self.programs.values():
            if not started.is_running:
                raise RuntimeError(f"{started.name} has ended\n{started.log_tail()}")

    def end(self) -> None:
        """Kill all programs, in reverse order of their start."""
        for started in reversed(self.programs.values()):
            started.kill()


@contextlib.contextmanager
def control_plane(folder: Path) -> Iterator[ControlPlane]:
    """A control plane with its files in `folder`; all programs end with the context."""
    authority = Authority(folder / "certificates")
    admin = authority.kubeconfig("admin", url=API_URL, group="system:masters")
    plane = ControlPlane(folder, authority, Kubectl(admin))
    try:
        _start(plane)
        yield plane
    finally:
        plane.end()


def _start(plane: ControlPlane) -> None:
    keys = plane.folder / "certificates" / "service-accounts.key"
    write_key(keys)
    plane.run("etcd", etcd_command(plane.folder / "etcd"))
    plane.run(
        "kube-apiserver",
        [
            *api_server_command(plane.authority, keys),
            *audit_flags(plane.folder),
            *aggregation_flags(plane.folder / "front-proxy"),
        ],
    )
    plane.wait("API server ready", f"{API_URL}/readyz")
    plane.run("kube-controller-manager", controller_manager_command(plane.authority, keys))
    plane.run("kube-scheduler", scheduler_command(plane.authority))
    plane.wait("controller manager healthy", "https://127.0.0.1:10257/healthz")
    plane.wait("scheduler healthy", "https://127.0.0.1:10259/healthz")


def etcd_command(data: Path) -> list[str]:
    """etcd for one run: nothing is synced to disk."""
    return [
        str(program("etcd")),
        f"--data-dir={data}",
        f"--listen-client-urls={ETCD_URL}",
        f"--advertise-client-urls={ETCD_URL}",
        f"--listen-peer-urls={ETCD_PEER_URL}",
        f"--initial-advertise-peer-urls={ETCD_PEER_URL}",
        f"--initial-cluster=default={ETCD_PEER_URL}",
        "--unsafe-no-fsync",
        "--log-level=warn",
    ]


def api_server_command(authority: Authority, keys: Path) -> list[str]:
    """An API server that authenticates users by certificate and pods by service account token."""
    serving = authority.server("kube-apiserver", alternatives=API_NAMES)
    return [
        str(program("kube-apiserver")),
        f"--etcd-servers={ETCD_URL}",
        "--bind-address=0.0.0.0",
        f"--advertise-address={HOST_ADDRESS}",
        f"--secure-port={API_PORT}",
        f"--service-cluster-ip-range={SERVICE_NETWORK}",
        f"--tls-cert-file={serving.certificate}",
        f"--tls-private-key-file={serving.key}",
        f"--client-ca-file={authority.certificate}",
        f"--service-account-key-file={keys.with_suffix('.pub')}",
        f"--service-account-signing-key-file={keys}",
        "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        SCALE_TO_ZERO,
    ]


def aggregation_flags(folder: Path) -> list[str]:
    """The aggregation layer, with an authority of its own, straight to the pods of a Service."""
    authority = Authority(folder)
    proxy = authority.user("front-proxy-client")
    return [
        "--enable-aggregator-routing=true",
        f"--requestheader-client-ca-file={authority.certificate}",
        "--requestheader-allowed-names=front-proxy-client",
        "--requestheader-extra-headers-prefix=X-Remote-Extra-",
        "--requestheader-group-headers=X-Remote-Group",
        "--requestheader-username-headers=X-Remote-User",
        f"--proxy-client-cert-file={proxy.certificate}",
        f"--proxy-client-key-file={proxy.key}",
    ]


def controller_manager_command(authority: Authority, keys: Path) -> list[str]:
    """All built-in controllers, each with its own service account."""
    user = authority.kubeconfig("system:kube-controller-manager", url=API_URL)
    return [
        str(program("kube-controller-manager")),
        *_as_user(user),
        "--bind-address=127.0.0.1",
        "--leader-elect=false",
        "--use-service-account-credentials=true",
        "--horizontal-pod-autoscaler-sync-period=2s",
        SCALE_TO_ZERO,
        f"--service-account-private-key-file={keys}",
        f"--root-ca-file={authority.certificate}",
    ]


def scheduler_command(authority: Authority) -> list[str]:
    user = authority.kubeconfig("system:kube-scheduler", url=API_URL)
    command = [str(program("kube-scheduler")), *_as_user(user)]
    return [*command, "--bind-address=127.0.0.1", "--leader-elect=false"]


def _as_user(kubeconfig: Path) -> list[str]:
    flags = ("kubeconfig", "authentication-kubeconfig", "authorization-kubeconfig")
    return [f"--{flag}={kubeconfig}" for flag in flags]
