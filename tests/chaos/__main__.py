"""`python -m tests.chaos`: a campaign of random faults; exit status 1 if an invariant is broken."""

import argparse
import asyncio
import random
import shutil
import signal
import sys
import tempfile
from pathlib import Path

from tests.chaos.campaign import Campaign
from tests.chaos.faults import KINDS
from tests.chaos.platform import PlatformUnderTest
from tests.chaos.report import markdown


def main() -> int:
    options = _options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    folder = Path(tempfile.mkdtemp(prefix="pilotlight-chaos-"))
    platform = PlatformUnderTest(folder, pods=options.pods, models=options.models)
    print(f"seed {options.seed}, {options.faults} faults, files in {folder}", flush=True)  # noqa: T201
    campaign = Campaign(platform, options.seed, options.rate, together=options.together)
    try:
        platform.start()
        asyncio.run(campaign.run(options.faults, limit_s=options.limit))
        if campaign.violations:
            shutil.copytree(platform.home / "logs", folder / "logs")
    finally:
        platform.stop()
        print(markdown(campaign))  # noqa: T201
    for each in campaign.violations:
        print(f"VIOLATION {each}")  # noqa: T201
    if campaign.violations:
        print(f"logs: {folder}/logs; again: --seed {options.seed}")  # noqa: T201
        return 1
    shutil.rmtree(folder)
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--faults", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--limit", type=float, default=3 * 3600.0, help="seconds, at most")
    parser.add_argument("--rate", type=float, default=20.0, help="requests per second")
    parser.add_argument("--pods", type=int, default=3)
    parser.add_argument("--models", type=int, default=6)
    parser.add_argument(
        "--together",
        nargs="+",
        default=(),
        metavar="KIND",
        choices=[each.name for each in KINDS],
        help="cause these in every round, in place of random ones",
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
