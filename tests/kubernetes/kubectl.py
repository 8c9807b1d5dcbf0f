"""`kubectl` as one user: all changes of the cluster by tests are made with it."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.kubernetes.places import TIMEOUT_S

CALL_TIMEOUT_S = 2 * TIMEOUT_S
"""Timeout of one call, longer than that of `kubectl wait`."""
RETRY_S = 0.2
APPLY = ("apply", "--server-side", "--warnings-as-errors")


@dataclass(frozen=True, slots=True)
class Answer:
    """Exit status and output of one call of kubectl."""

    status: int
    output: str
    errors: str

    @property
    def is_ok(self) -> bool:
        return self.status == 0


@dataclass(frozen=True, slots=True)
class Kubectl:
    """kubectl with one user's kubeconfig."""

    kubeconfig: Path

    def __call__(self, *arguments: str, given: str = "") -> str:
        """The output; raises AssertionError with standard error if kubectl fails."""
        answer = self.answer(*arguments, given=given)
        command = f"kubectl {' '.join(arguments)}"
        assert answer.is_ok, f"{command}: status {answer.status}\n{answer.output}{answer.errors}"
        return answer.output

    def answer(self, *arguments: str, given: str = "") -> Answer:
        """Status and output of one call, successful or not."""
        done = subprocess.run(
            ["kubectl", "--kubeconfig", str(self.kubeconfig), *arguments],
            input=given,
            capture_output=True,
            text=True,
            timeout=CALL_TIMEOUT_S,
            check=False,
        )
        return Answer(done.returncode, done.stdout, done.stderr)

    def apply(self, objects: Iterable[dict[str, Any]], *more: str) -> str:
        """Apply objects server-side; warnings of the server are failures."""
        return self(*APPLY, *more, "-f", "-", given=yaml.safe_dump_all(objects))

    def try_apply(self, objects: Iterable[dict[str, Any]]) -> Answer:
        """Apply objects that the server may reject."""
        return self.answer(*APPLY, "-f", "-", given=yaml.safe_dump_all(objects))

    def as_account(self, namespace: str, account: str, folder: Path) -> Kubectl:
        """kubectl with a token of a service account."""
        content = json.loads(self("config", "view", "--raw", "--minify", "-o", "json"))
        token = self("-n", namespace, "create", "token", account).strip()
        content["users"][0]["user"] = {"token": token}
        path = folder / f"{namespace}-{account}.kubeconfig"
        path.write_text(json.dumps(content))
        path.chmod(0o600)
        return Kubectl(path)

    def get(self, *arguments: str) -> dict[str, Any]:
        """An object, or a list of objects under `items`."""
        found: dict[str, Any] = json.loads(self("get", *arguments, "-o", "json"))
        return found

    def wait(self, what: str, *arguments: str, timeout_s: float = TIMEOUT_S) -> str:
        """Wait until `what`, such as `condition=Ready`, holds for an object.

        kubectl itself fails for objects that do not exist yet or have no status.
        """
        give_up_s = time.monotonic() + timeout_s
        while True:
            left_s = max(1, round(give_up_s - time.monotonic()))
            answer = self.answer("wait", f"--for={what}", f"--timeout={left_s}s", *arguments)
            if answer.is_ok:
                return answer.output
            if time.monotonic() >= give_up_s:
                raise TimeoutError(f"{what} of {' '.join(arguments)}: {answer.errors}")
            time.sleep(RETRY_S)


def kustomize(folder: Path) -> list[dict[str, Any]]:
    """The objects of a kustomization."""
    done = subprocess.run(
        ["kubectl", "kustomize", str(folder)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))
