"""docs/install.md as written: its blocks, in its order, from nothing to an answer and back.

A block is run unless the page's source says why not, in a comment above it. Of the text only this
is replaced: the registry's name, the credentials of the object store, the address of the forwarded
port, and `kubectl exec`, by the same command here. The public model comes from a server of the
Hub's protocol on this machine.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.kubernetes.kubectl import Kubectl
from tests.kubernetes.object_store import PORT, tiny_models
from tests.kubernetes.page import blocks
from tests.kubernetes.places import HOST_ADDRESS, NAMESPACE, REPOSITORY, program
from tests.kubernetes.suite import Cluster
from tests.servers import S3Server, wait_until

pytestmark = pytest.mark.kubernetes

IN_THE_CONTROLLER = f"kubectl -n {NAMESPACE} exec deployment/pilotlight-controller -- python"
HUB_PORT = PORT + 1
REGISTRY = "registry.example.com/pilotlight"
ANSWER_TIMEOUT_S = 300.0


@dataclass(frozen=True, slots=True)
class Shell:
    """A shell in a copy of the repository's manifests, with the administrator's rights."""

    admin: Kubectl
    folder: Path
    store: S3Server

    def run(self, command: str) -> None:
        filled = self._at_service(self._filled(command))
        environment = {
            **os.environ,
            "KUBECONFIG": str(self.admin.kubeconfig),
            "PYTHONPATH": str(REPOSITORY),
            "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}",
        }
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", filled],
            cwd=self.folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        assert done.returncode == 0, f"{filled}\n{done.stdout}{done.stderr}"

    def _filled(self, command: str) -> str:
        """With what a reader fills in."""
        credentials = {**self.store.environment, "HF_ENDPOINT": f"http://{HOST_ADDRESS}:{HUB_PORT}"}
        literals = " ".join(f"--from-literal={key}={text}" for key, text in credentials.items())
        command = command.replace(IN_THE_CONTROLLER, sys.executable)
        command = re.sub(r"(--from-literal=\S+=… ?)+", f"{literals} ", command)
        return re.sub(r"\bREGISTRY\b", REGISTRY, command)

    def walk(self, tool: str) -> None:
        """Run the page's blocks, of the two ways of installing those of `tool`.

        After an upgrade and a rollback the page's request is sent again.
        """
        chosen = [each for each in blocks() if each.is_run and each.tool in ("", tool)]
        [ask] = [each.text for each in chosen if each.text.startswith("curl ")]
        for block in chosen:
            self.run(block.text)
            if re.match(r"helm (upgrade|rollback) pilotlight ", block.text):
                self.run(ask)

    def _at_service(self, command: str) -> str:
        """With the gateway's Service in place of the forwarded port."""
        if "localhost:8080" not in command:
            return command
        found = self.admin.get("-n", NAMESPACE, "service", "pilotlight-gateway")
        address = found["spec"]["clusterIP"]
        return command.replace("curl -s localhost:8080", f"curl -sS --fail-with-body {address}")


@pytest.fixture(scope="module")
def shell(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    if cluster.plane is None or cluster.store is None:
        pytest.skip("needs a cluster of its own")
    if cluster.admin.answer("get", "namespace", NAMESPACE).is_ok:
        pytest.skip("Pilotlight is installed already")
    folder = tmp_path_factory.mktemp("page")
    for each in ("manifests", "scripts"):
        shutil.copytree(REPOSITORY / each, folder / each)
    (folder / "bin").mkdir()
    model = tiny_models() / "tiny-bert"
    cluster.plane.run(
        "hub",
        [
            sys.executable,
            "-m",
            "tests.kubernetes.hub",
            "--folder",
            str(model),
            "--host",
            HOST_ADDRESS,
            "--port",
            str(HUB_PORT),
        ],
    )
    yield Shell(cluster.admin, folder, cluster.store)
    cluster.plane.stop("hub")


@pytest.fixture
def helm(shell: Shell) -> None:
    """On the shell's path."""
    try:
        (shell.folder / "bin" / "helm").symlink_to(program("helm"))
    except FileNotFoundError as error:
        pytest.skip(str(error))


@pytest.fixture
def clean(shell: Shell) -> Iterator[None]:
    """Without the page's namespace afterwards."""
    yield
    shell.admin("delete", "namespace", NAMESPACE, "--ignore-not-found")


def test_with_helm(shell: Shell, helm: None, clean: None) -> None:
    shell.walk("Helm")
    _check_clean(shell)


def test_with_kustomize(shell: Shell, clean: None) -> None:
    shell.walk("kustomize")
    _check_clean(shell)


def _check_clean(shell: Shell) -> None:
    """The model stays, as the kinds do with Helm, and can be deleted."""
    shell.admin("delete", "isvc", "first", "--timeout=60s")
    left = shell.admin("get", "crds", "-o", "name").split()
    if own := [each for each in left if ".pilotlight.io" in each]:
        shell.admin("delete", *own)
    kinds = (
        "clusterroles,crds,mutatingwebhookconfigurations,validatingwebhookconfigurations,"
        "validatingadmissionpolicies"
    )
    wait_until(
        lambda: "pilotlight" not in shell.admin("get", kinds, "-o", "name"),
        timeout_s=ANSWER_TIMEOUT_S,
        what="nothing is left in the cluster",
    )
