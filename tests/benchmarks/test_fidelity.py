"""Pairs of live and simulated runs, without a live platform."""

from dataclasses import asdict, replace
from typing import Any

import orjson
import pytest
import yaml

from benchmarks.fidelity.compare import Pair, again, chosen, pairs, ranks, summary
from benchmarks.fidelity.settings import SETTINGS, Mix, Setting
from benchmarks.fidelity.simulated import cluster_document
from load.simulator.cluster.cluster_file import cluster_of

HOP_S = 0.002
LOAD_S = {"remote": 2.0, "disk": 0.2, "host": 0.05}
INFER_S = 0.04


def setting(name: str) -> Setting:
    return next(each for each in SETTINGS if each.name == name)


def facts(of: Setting) -> dict[str, Any]:
    """What a measurement of the setting's platform gives; only the first model was loaded."""
    shape = of.shape
    stages_s = {"load": 0.0, "preprocess": 0.001, "infer": INFER_S, "postprocess": 0.001}
    warm = {"start": "warm", "pod": "pod-0", "predict_pod": "pod-0", "stages_s": stages_s}
    document: dict[str, Any] = {
        "nodes": [
            {
                "name": f"pod-{number}",
                "pods": [{"slots": shape.slots, "memory": "250MB"}],
                "object_storage_rate": f"{shape.link_bytes_per_s or 10**9}/s",
            }
            for number in range(shape.pods)
        ],
        "models": [
            {
                "name": f"default/m-{number}",
                "size": 80 * 10**6,
                "infer": {1: f"{INFER_S}s"},
                "at": {"pod-0": "disk"},
            }
            for number in range(shape.models)
        ],
    }
    loads = {tier: f"{1e6 * each:.0f}us" for tier, each in LOAD_S.items()}
    if shape.link_bytes_per_s:
        del loads["remote"]
        fixed_s = LOAD_S["remote"] - 80e6 / shape.link_bytes_per_s
        document["models"][0]["load_fixed"] = f"{1e6 * fixed_s:.0f}us"
    document["models"][0]["load"] = loads
    requests = [warm | {"latency_s": HOP_S + sum(stages_s.values())}]
    return {"cluster_file": yaml.safe_dump(document), "requests": requests}


def document(of: Setting, count: int) -> dict[str, Any]:
    """A file with one live run, of which only what a simulation reads is there."""
    known_s = {f"{spec.name}@1": {"infer": INFER_S} for spec in of.shape.specs()}
    arrivals = [(each.at_s, each.model, each.seed) for each in of.arrivals(count)]
    run = {"setting": asdict(of), "arrivals": arrivals, "live": {"known_s": known_s}}
    return {"platforms": {of.shape.name: facts(of)}, "runs": {of.name: run}}


def _outcome(latency_s: float) -> dict[str, Any]:
    return {"latency_s": latency_s, "error": "", "stages_s": {"infer": latency_s - 0.1}}


def pair(policy: str, live_s: list[float], simulated_s: list[float]) -> Pair:
    live, other = (
        {"outcomes": [_outcome(each) for each in found], "loads": 0}
        for found in (live_s, simulated_s)
    )
    of = replace(SETTINGS[0], name=policy, policy=policy)
    return Pair(of, live | {"took_s": 2.0, "cpu_s": {"client": 1.0, "machine": 4.0}}, other)


def test_both_halves_have_the_same_kinds_of_settings_and_no_seed_in_common() -> None:
    fit, report = chosen("fit", ""), chosen("report", "")
    kinds = [
        [(each.mix, each.policy, each.shape.loading) for each in half] for half in (fit, report)
    ]
    assert kinds[0] == kinds[1]
    assert not {each.seed for each in fit} & {each.seed for each in report}
    assert all(one.shape != other.shape for one, other in zip(fit, report, strict=True))


def test_arrivals_are_those_of_the_seed_and_end_with_the_setting() -> None:
    of = setting("fit load-heavy auto")
    found = of.arrivals()
    assert found == of.arrivals()
    assert found != replace(of, seed=of.seed + 1).arrivals()
    assert found[-1].at_s <= of.seconds
    assert len(found) == pytest.approx(of.rate * of.seconds, rel=0.2)
    assert found[:5] == of.arrivals(5)


def test_a_measured_platform_becomes_a_cluster_file() -> None:
    of = setting("fit load-heavy auto")
    plan = cluster_of(cluster_document(facts(of), of), source="test")
    assert 2 * plan.gateway_hop_s == pytest.approx(HOP_S)
    link_s = 80e6 / of.shape.link_bytes_per_s
    for model in plan.models:
        assert model.load_fixed_s == pytest.approx(LOAD_S["remote"] - link_s)
        assert model.load_s == pytest.approx({"disk": LOAD_S["disk"], "host": LOAD_S["host"]})
        assert not model.at


def test_all_models_are_warm_at_the_start_of_batch_heavy_settings() -> None:
    of = setting("report batch-heavy random")
    plan = cluster_of(cluster_document(facts(of), of), source="test")
    assert all(set(model.at.values()) == {"device"} for model in plan.models)
    assert all(len(model.at) == of.shape.pods for model in plan.models)


@pytest.mark.parametrize("name", ["fit load-heavy colocation", "fit predictive auto"])
def test_a_files_live_runs_are_simulated_anew(name: str) -> None:
    found = orjson.loads(orjson.dumps(document(setting(name), 30)))
    again(found)
    [run] = found["runs"].values()
    outcomes = run["simulated"]["outcomes"]
    assert len(outcomes) == 30
    assert run["simulated"]["loads"] > 0
    first_s = outcomes[0]["latency_s"]
    assert first_s == pytest.approx(LOAD_S["remote"] + INFER_S + HOP_S + 0.002, abs=0.01)
    again(found, only="another")
    assert run["simulated"]["outcomes"] is outcomes


def test_only_simulated_runs_are_pairs() -> None:
    found = document(setting("fit batch-heavy auto"), 3)
    assert not pairs(found)
    again(found)
    [only] = pairs(found)
    assert only.setting == setting("fit batch-heavy auto")
    assert only.setting.mix is Mix.BATCH


def test_percentiles_over_their_limits_are_not_met() -> None:
    live = [1.0] * 9 + [2.0]
    near = pair("auto", live, [1.09] * 9 + [2.2])
    late = pair("random", live, [1.09] * 9 + [2.4])
    far = pair("colocation", live, [1.2] * 9 + [2.0])
    lines = list(summary([near, late, far]))
    assert [line.split(" | ")[4] for line in lines[2:5]] == ["+9%, +10%", "+9%, +20%", "+20%, +0%"]
    assert [each.is_met for each in (near, late, far)] == [True, False, False]
    assert "\n1 of 3 pairs met." in lines


def test_the_stage_that_differs_most_is_named() -> None:
    found = pair("auto", [1.0] * 9 + [2.0], [1.2] * 9 + [1.5])
    assert found.cause(0.0, 0.5) == "infer +200 ms"
    assert found.cause(0.9, 1.0) == "infer -500 ms"


def test_ranks_count_where_live_runs_differ_clearly() -> None:
    fast = pair("auto", [1.0], [1.0])
    near = pair("random", [1.05], [0.9])
    slow = pair("colocation", [2.0], [0.95])
    assert ranks([fast, near]) == (0, 0)
    assert ranks([fast, near, slow]) == (1, 1)
