"""Accuracy profiles as a file, which clusters of the simulator name."""

import json
from pathlib import Path

from load.simulator.cluster.cluster_file import cluster_of
from pilotlight.commands.profile_application import accuracy_document
from registry.domain.application import AccuracyProfile, ApplicationSpec
from registry.domain.cluster import ClusterState
from registry.domain.model import ModelName, ModelPolicy, ModelRecord, ModelSpec


def test_what_is_exported_the_simulator_reads(tmp_path: Path) -> None:
    spec, name = ApplicationSpec(ModelName("team", "moods"), ("bad", "good")), "team/small"
    model = ModelSpec(ModelName.parse(name), "s3://m/1", policy=ModelPolicy(application="moods"))
    state = ClusterState()
    state.models[model.name] = ModelRecord(model)
    matrix = ((8, 2), (1, 9))
    state.accuracies[model.name] = AccuracyProfile(model.key, spec.classes, matrix)
    file = tmp_path / "moods.json"
    file.write_text(json.dumps(accuracy_document(spec, state)))
    application = {
        "name": "team/moods", "spec": {"classes": ["bad", "good"]}, "profile": str(file),
    }  # fmt: skip
    plan = cluster_of(
        {
            "nodes": [{"name": "n", "pods": [{}]}],
            "models": [{"name": name, "annotations": {"application": "moods"}}],
            "applications": [application],
        },
        source="test",
    )
    assert plan.applications[0].confusions == {"small": matrix}
