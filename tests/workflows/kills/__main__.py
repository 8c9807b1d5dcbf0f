"""`python -m tests.workflows.kills --kills 200`: random kills under runs of a workflow."""

import argparse
import random
import sys
import tempfile
import time
from pathlib import Path

from tests.workflows.kills.campaign import KillCampaign, KillReport
from tests.workflows.kills.cluster import KillCluster


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--limit", type=float, default=3600.0, help="seconds of kills at most")
    options = parser.parse_args()
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, KillCluster(Path(folder)) as cluster:
        campaign = KillCampaign(cluster, random.Random(options.seed))
        report = campaign.run(options.kills, limit_s=options.limit)
    for line in _lines(report, time.monotonic() - began_s):
        sys.stdout.write(f"{line}\n")
    sys.exit(1 if report.violations or report.accepted != report.succeeded else 0)


def _lines(report: KillReport, seconds: float) -> list[str]:
    kills = ", ".join(f"{name} {count}" for name, count in report.kills.items())
    return [
        f"{sum(report.kills.values())} kills ({kills}) in {seconds:.0f} s",
        f"{report.accepted} runs accepted, {report.succeeded} succeeded, {report.resumed} of them "
        f"resumed; {report.repeated} steps sent again, {report.made_again} lost outputs made again",
        "pods: " + ", ".join(f"{count} {what}" for what, count in report.pod_work.items()),
        *(f"VIOLATION {each}" for each in report.violations),
    ]


if __name__ == "__main__":
    main()
