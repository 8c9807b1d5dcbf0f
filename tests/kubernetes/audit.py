"""The API server's audit log: the requests that each part of the platform makes."""

import json
from collections import Counter
from pathlib import Path

from tests.kubernetes.places import NAMESPACE

POLICY = f"""\
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived, ResponseStarted]
rules:
- level: Metadata
  userGroups: ["system:serviceaccounts:{NAMESPACE}"]
- level: None
"""
LOG = "audit.log"


def audit_flags(folder: Path) -> list[str]:
    """Flags of the API server with which it logs what the platform's accounts ask."""
    policy = folder / "audit-policy.yaml"
    policy.write_text(POLICY)
    return [f"--audit-policy-file={policy}", f"--audit-log-path={folder / LOG}"]


def requests_by_account(folder: Path) -> Counter[str]:
    """The number of ended requests so far, by service account of the platform."""
    lines = (folder / LOG).read_text().splitlines()
    return Counter(json.loads(line)["user"]["username"].rpartition(":")[2] for line in lines)
