"""docs/install.md as written: its commands, read from the page, from nothing to an answer and back.

Of the page's text only this is replaced: the registry's name, the credentials of the object store,
and the address of the forwarded port. Left out are the images' builds, which need a container
engine, and `kubectl port-forward`, which the node agent has not. The public model comes from a
server of the Hub's protocol on this machine.
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
from tests.kubernetes.places import HOST_ADDRESS, NAMESPACE, REPOSITORY, program
from tests.kubernetes.suite import Cluster
from tests.servers import S3Server, wait_until

pytestmark = pytest.mark.kubernetes

HUB_PORT = PORT + 1
REGISTRY = "registry.example.com/pilotlight"
ANSWER_TIMEOUT_S = 300.0


def commands(section: str, *, after: str = "") -> list[str]:
    """The indented lines of a section; with `after` only the first ones below that text."""
    page = (REPOSITORY / "docs" / "install.md").read_text()
    text = page.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    if after:
        text = text.partition(after)[2]
        assert text, f"{section} has no {after!r}"
        text = re.split(r"\n\n(?=\S)", text.partition("\n\n")[2])[0]
    return [line.strip() for line in text.splitlines() if line.startswith("    ")]


@dataclass(frozen=True, slots=True)
class Shell:
    """A shell in a copy of the repository's manifests, with the administrator's rights."""

    admin: Kubectl
    folder: Path
    store: S3Server

    def run(self, command: str) -> None:
        filled = self._filled(command)
        environment = {
            **os.environ,
            "KUBECONFIG": str(self.admin.kubeconfig),
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
        command = re.sub(r"(--from-literal=\S+=… ?)+", f"{literals} ", command)
        return re.sub(r"\bREGISTRY\b", REGISTRY, command)

    def ask_first(self) -> None:
        """The page's `curl`, at the Service instead of the forwarded port."""
        [curl] = [each for each in commands("Install") if each.startswith("curl ")]
        found = self.admin.get("-n", NAMESPACE, "service", "pilotlight-gateway")
        self.run(
            curl.replace(
                "curl -s localhost:8080", f"curl -sS --fail-with-body {found['spec']['clusterIP']}"
            )
        )


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
def namespace(shell: Shell) -> Iterator[None]:
    """The page's namespace and credentials; the namespace is gone afterwards."""
    for each in commands("Install", after="The namespace, and the credentials"):
        shell.run(each)
    yield
    shell.admin("delete", "namespace", NAMESPACE, "--ignore-not-found")


def test_with_helm(shell: Shell, helm: None, namespace: None) -> None:
    _install(shell, "**With Helm:**")
    _ask(shell)
    for each in commands("Upgrade"):
        shell.run(each)
        shell.run(f"kubectl -n {NAMESPACE} rollout status deployment/pilotlight-gateway")
        shell.ask_first()
    _uninstall(shell, "helm")


def test_with_kustomize(shell: Shell, namespace: None) -> None:
    _install(shell, "**With kustomize**")
    _ask(shell)
    _uninstall(shell, "kubectl")


def _install(shell: Shell, after: str) -> None:
    found = commands("Install", after=after)
    assert found
    for each in found:
        shell.run(each)


def _ask(shell: Shell) -> None:
    first = commands("Install", after="A first model")
    for each in first:
        if not each.startswith("curl ") and "port-forward" not in each:
            shell.run(each)
    shell.ask_first()


def _uninstall(shell: Shell, tool: str) -> None:
    """The models first, then by the same tool as it was installed."""
    models, rest = commands("Uninstall")[:2]
    by_helm, by_kustomize = rest.split("# or:")
    shell.run(models)
    shell.run(by_helm if tool == "helm" else by_kustomize)
    kinds = "clusterroles,crds,mutatingwebhookconfigurations,validatingwebhookconfigurations"
    wait_until(
        lambda: "pilotlight" not in shell.admin("get", kinds, "-o", "name"),
        timeout_s=ANSWER_TIMEOUT_S,
        what="nothing is left in the cluster",
    )
