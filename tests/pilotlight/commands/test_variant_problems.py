"""`apply` says which variants of an application cannot be chosen, and why."""

import json
from pathlib import Path

from registry.domain.application import AccuracyProfile
from registry.redis.client import Registry
from tests import servers
from tests.pilotlight.conftest import Cli
from tests.registry.redis.clients import act

APPLICATION = """
apiVersion: pilotlight.io/v1alpha1
kind: InferenceApplication
metadata: {name: digits}
spec: {classes: [even, odd]}
---
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata: {name: small, annotations: {pilotlight.io/application: digits}}
spec: {predictor: {model: {modelFormat: {name: pytorch}, storageUri: "file:///small"}}}
"""


def test_apply_names_variants_that_a_changed_application_leaves_out(
    verb: Cli, redis: servers.RedisServer, tmp_path: Path
) -> None:
    file = tmp_path / "digits.yaml"
    file.write_text(APPLICATION)
    applied = verb("apply", "-f", str(file))
    assert applied.status == 0
    assert applied.err == "default/digits: small cannot be chosen: has no accuracy profile\n"

    async def profile(registry: Registry) -> None:
        [model] = (await registry.cluster()).models.values()
        matrix = ((9, 1), (1, 9))
        await registry.put_accuracy(AccuracyProfile(model.spec.key, ("even", "odd"), matrix))

    act(redis.url, "default", profile)
    assert verb("apply", "-f", str(file)).err == ""
    file.write_text(APPLICATION.replace("even, odd", "no, yes"))
    said = "its accuracy profile is of other classes"
    applied = verb("apply", "-f", str(file))
    assert applied.err == f"default/digits: small cannot be chosen: {said}\n"
    listed = json.loads(verb("get", "applications", "--json").out)
    assert listed[0]["left_out"] == [f"small: {said}"]
