"""A pod's network: a network namespace with one address, attached to the suite's bridge."""

import ipaddress
import itertools
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass

from tests.kubernetes.places import HOST_ADDRESS, POD_NETWORK
from tests.servers import wait_until

BRIDGE = "pods"
"""The bridge, which `scripts/kubernetes/test` creates in the suite's network."""

_lock = threading.Lock()
_addresses = (
    str(address)
    for address in itertools.islice(ipaddress.ip_network(POD_NETWORK).hosts(), 256, None)
)


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True)


@dataclass
class Sandbox:
    """The network namespace of one pod, kept alive by a process that sleeps."""

    address: str
    keeper: subprocess.Popen[bytes]

    def enter(self) -> list[str]:
        """Command prefix that runs a command in this network, in a mount namespace of its own."""
        return ["nsenter", "--target", str(self.keeper.pid), "--net", "unshare", "--mount", "--"]

    def deny(self, address: str) -> None:
        """Refuse connections to an address, as a network plugin does that enforces policies."""
        inside = ["nsenter", "--target", str(self.keeper.pid), "--net", "ip"]
        _run(*inside, "route", "add", "prohibit", f"{address}/32")

    def close(self) -> None:
        """Delete the network with all of its connections."""
        self.keeper.send_signal(signal.SIGKILL)
        self.keeper.wait()


def open_sandbox() -> Sandbox:
    """A network namespace with the next free address."""
    with _lock:
        address = next(_addresses)
    waits = [sys.executable, "-S", "-c", "import signal; print('up', flush=True); signal.pause()"]
    keeper = subprocess.Popen(["unshare", "--net", *waits], stdout=subprocess.PIPE)
    assert keeper.stdout is not None
    keeper.stdout.readline()
    here, pid = f"pod{keeper.pid}", str(keeper.pid)
    _run("ip", "link", "add", here, "type", "veth", "peer", "name", "eth0", "netns", pid)
    _run("ip", "link", "set", here, "master", BRIDGE, "up")
    inside = ["nsenter", "--target", pid, "--net", "ip"]
    _run(*inside, "link", "set", "lo", "up")
    _run(*inside, "addr", "add", f"{address}/16", "dev", "eth0")
    _run(*inside, "link", "set", "eth0", "up")
    _run(*inside, "route", "add", "default", "via", HOST_ADDRESS)
    reach = [*inside[:-1], "ip", "route", "get", HOST_ADDRESS]
    wait_until(
        lambda: subprocess.run(reach, capture_output=True, check=False).returncode == 0,
        what=f"{address} reaches the bridge",
    )
    return Sandbox(address, keeper)
