"""Each part is killed once while workflows run: no accepted run is lost, nothing is left."""

import random
from pathlib import Path

import pytest

from tests.workflows.kills.campaign import KillCampaign
from tests.workflows.kills.cluster import VICTIMS, KillCluster


@pytest.mark.slow
def test_no_accepted_run_is_lost(tmp_path: Path) -> None:
    with KillCluster(tmp_path) as cluster:
        campaign = KillCampaign(cluster, random.Random(1))
        report = campaign.run(len(VICTIMS), victims=VICTIMS)
    assert report.violations == []
    assert report.accepted == report.succeeded
    assert set(report.kills.values()) == {1}
