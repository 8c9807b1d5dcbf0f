"""`pilotlight scale` with the rights of the controller."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

from tests.kubernetes.places import IN_NAMESPACE, NAMESPACE, REPOSITORY

if TYPE_CHECKING:
    from pathlib import Path

    from tests.kubernetes.kubectl import Kubectl


class Scaler:
    """The command, for pools by name."""

    def __init__(self, kubectl: Kubectl, folder: Path) -> None:
        account = kubectl.as_account(NAMESPACE, "pilotlight-controller", folder)
        redis = kubectl.get(*IN_NAMESPACE, "service", "pilotlight-redis")["spec"]["clusterIP"]
        self._environment = {**os.environ, "KUBECONFIG": str(account.kubeconfig)}
        self._redis = f"redis://{redis}:6379"

    def __call__(self, pods: int, *, pool: str = "default") -> subprocess.CompletedProcess[str]:
        scale = ["scale", pool, "--pods", str(pods), "--redis-url", self._redis]
        return subprocess.run(
            [sys.executable, "-m", "pilotlight", *scale],
            cwd=REPOSITORY,
            env=self._environment,
            capture_output=True,
            text=True,
            check=False,
        )
