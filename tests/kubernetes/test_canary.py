"""A canary as users define it: requests are shared by weight, and the status shows the shares."""

import logging

import pytest

from tests.kubernetes.kubectl import Kubectl
from tests.kubernetes.models import Gateway, Tenant
from tests.servers import wait_until

logger = logging.getLogger(__name__)

pytestmark = pytest.mark.kubernetes

VERSION = "x-pilotlight-version"
TIMEOUT_S = 120.0


def test_versions_share_requests_by_weight_and_the_status_shows_it(
    installed: Kubectl, gateway: Gateway, tenant: Tenant
) -> None:
    tenant.declare("stable")
    tenant.declare("stable-next", canary_of="stable", canary_percent="50")
    tenant.wait_ready("stable")
    tenant.wait_ready("stable-next")
    seen: set[str | None] = set()

    def both_answered() -> bool:
        answer = gateway.predict(tenant, "stable")
        assert answer.status_code == 200, answer.text
        seen.add(answer.headers.get(VERSION))
        return {"stable", "stable-next"} <= seen

    wait_until(both_answered, timeout_s=TIMEOUT_S, what="both versions answer")
    wait_until(
        lambda: _shares(tenant) == {"stable-next": 50, "stable": 50},
        timeout_s=TIMEOUT_S,
        what="the shares in the status",
    )
    logger.info("\n%s", installed("get", "isvc", "-n", tenant.namespace))


def _shares(tenant: Tenant) -> dict[str, int]:
    traffic = tenant.status("stable")["components"]["predictor"]["traffic"]
    return {each["revisionName"].rpartition("-")[0]: each["percent"] for each in traffic}


def test_after_deleting_the_canary_the_model_receives_all_requests(
    gateway: Gateway, tenant: Tenant
) -> None:
    tenant.declare("whole")
    tenant.declare("whole-next", canary_of="whole", canary_percent="100")
    tenant.wait_ready("whole-next")
    wait_until(
        lambda: gateway.predict(tenant, "whole").headers.get(VERSION) == "whole-next",
        timeout_s=TIMEOUT_S,
        what="the canary answers",
    )
    tenant.delete("whole-next")
    answer = gateway.predict(tenant, "whole")
    assert (answer.status_code, answer.headers.get(VERSION)) == (200, None)
