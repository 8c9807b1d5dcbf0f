"""The contract tests of the registry's scripts, run against the registry in memory.

All tests of `MODULES` run here under their own names, but for `LEFT_OUT`. `MODULES_LEFT_OUT` has
the other modules of `tests/registry/redis` that use a registry, so that none is forgotten.
"""

import inspect
import pkgutil
from importlib import import_module
from types import ModuleType
from typing import Any, Final

from tests.registry import redis as registry_tests
from tests.registry.redis import (
    test_loads,
    test_models,
    test_pods,
    test_profiles,
    test_reservations,
)

MODULES: Final = (test_loads, test_models, test_pods, test_profiles, test_reservations)

_FROM_PODS = "a simulated run sums idle memory from its pods, not by the registry"
_NO_ADDRESS = "simulated pods are called by name"
LEFT_OUT: Final = {
    "test_a_pod_has_its_address_until_its_lease_ends": _NO_ADDRESS,
    "test_an_address_taken_over_belongs_to_the_new_pod": _NO_ADDRESS,
    "test_idle_memory_is_summed_over_all_pods_ever": _FROM_PODS,
    "test_idle_memory_of_a_pod_that_registers_again_counts_once": _FROM_PODS,
    "test_a_new_process_of_a_pod_counts_idle_memory_from_zero": _FROM_PODS,
    "test_non_finite_measurements_are_ignored": "the client's encoding does it",
    "test_an_emptied_redis_repeats_no_epoch": "the memory is not emptied while in use",
    "test_profiles_are_published": "nothing is published: the state is the copy",
    "test_a_failed_operation_does_not_affect_its_batch": "there is no batch",
    "test_what_comes_in_one_turn_is_one_run_of_the_script": "there is no batch",
    "test_what_cannot_be_read_is_kept_until_a_load_or_another_declaration": (
        "no command checks the files of a simulated model"
    ),
}
"""Tests of these modules that do not apply, and why."""

MODULES_LEFT_OUT: Final = {
    "test_arrivals": "a simulated autoscaler counts arrivals itself, and plans beside no workflows",
    "test_autoscaler_log": "a run has one autoscaler, which needs no leader election",
    "test_many_models": "its steps let other clients use Redis meanwhile",
    "test_places": "simulated pods have the places of their cluster file",
    "test_queued_steps": "simulated workflows have devices of their own",
    "test_reports": "a simulated autoscaler reads the pods themselves",
    "test_shared_snapshot": "the state is the copy: no client takes a snapshot",
    "test_speeds": "the state is the copy, and all pods are of this version",
    "test_tenant_rules": "a simulated pool has one tenant, who may do anything",
    "test_watch": "nothing is published: the state is the copy",
    "test_withdrawn_measurements": "a run deletes no models",
    "test_workflow_log": "simulated workflows are not deployed, and their runs not resumed",
}
"""Modules whose tests use a registry, and why none of them runs here."""


def own_tests(module: ModuleType) -> dict[str, Any]:
    return {
        name: test
        for name, test in vars(module).items()
        if name.startswith("test_") and getattr(test, "__module__", None) == module.__name__
    }


def uses_a_registry(module: ModuleType) -> bool:
    return any(
        {"registry", "connect"} & inspect.signature(test).parameters.keys()
        for test in own_tests(module).values()
    )


CONTRACT: Final = [each for module in MODULES for each in own_tests(module).items()]
globals().update({name: test for name, test in CONTRACT if name not in LEFT_OUT})


def test_every_contract_test_runs_here_or_has_a_reason() -> None:
    names = [name for name, _ in CONTRACT]
    assert len(set(names)) == len(names), "two tests of one name: one would hide the other"
    run_here = {name for name, test in CONTRACT if globals().get(name) is test}
    assert set(names) == run_here | set(LEFT_OUT)
    assert not run_here & set(LEFT_OUT)


def test_every_module_that_uses_a_registry_runs_here_or_has_a_reason() -> None:
    names = [each.name for each in pkgutil.iter_modules(registry_tests.__path__)]
    modules = [
        import_module(f"{registry_tests.__name__}.{name}")
        for name in names
        if name.startswith("test_")
    ]
    using = {module.__name__.rpartition(".")[2] for module in modules if uses_a_registry(module)}
    run_here = {module.__name__.rpartition(".")[2] for module in MODULES}
    assert using == run_here | set(MODULES_LEFT_OUT)
