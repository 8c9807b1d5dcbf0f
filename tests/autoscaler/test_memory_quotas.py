"""A namespace's models stay within its quota of memory on all pods together."""

from collections.abc import Mapping
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from autoscaler.plan import within_quotas
from autoscaler.policy import Action, ActionReason, CopyUse, Demote, Load, ModelView, PoolView
from registry.domain.model import ModelName, Tier
from tests.autoscaler import views

QUOTAS = {"greedy": 300}
SIZE = 100
PODS = ("p", "q")


def model(
    name: str,
    *pods: str,
    namespace: str = "greedy",
    last_s: float = 0.0,
    ongoing: int = 0,
    policy: Mapping[str, object] | None = None,
) -> ModelView:
    """A warm model, last used at `last_s` at all its pods."""
    made = views.model(
        name,
        at=dict.fromkeys(pods, Tier.DEVICE),
        size_bytes=SIZE,
        policy=policy,
        uses={pod: CopyUse(ongoing, last_s, 1) for pod in pods},
    )
    return replace(made, spec=replace(made.spec, name=ModelName(namespace, name)))


def view(*models: ModelView) -> PoolView:
    return views.pool([views.pod(name) for name in PODS], models)


def load(to: ModelView, pod: str) -> Load:
    return Load(to.key, pod, Tier.DEVICE, ActionReason.FORECAST)


def demoted(actions: tuple[Action, ...]) -> list[tuple[str, str]]:
    return [(each.key, each.pod) for each in actions if isinstance(each, Demote)]


def test_the_least_recently_used_copy_of_the_pool_leaves() -> None:
    old = model("old", "q", last_s=1)
    both = model("both", *PODS, last_s=5)
    new, other = model("new", "p", last_s=9), model("other", "p", "q", namespace="other")
    found = within_quotas(view(old, both, new, other), (), QUOTAS.get)
    assert demoted(found) == [(old.key, "q")]
    assert [each.reason for each in found if isinstance(each, Demote)] == [ActionReason.QUOTA]


def test_pinned_and_used_copies_stay_and_needed_ones_leave_last() -> None:
    pinned = model("pinned", *PODS, policy={"pin": True})
    used = model("used", "q", last_s=1, ongoing=1)
    needed = model("needed", "p", last_s=2, policy={"min_copies": 1})
    free = model("free", "p", last_s=9)
    full = view(pinned, used, needed, free)
    assert demoted(within_quotas(full, (), {"greedy": 400}.get)) == [(free.key, "p")]
    assert demoted(within_quotas(full, (), {"greedy": 100}.get)) == [
        (free.key, "p"),
        (needed.key, "p"),
    ]


def test_no_load_exceeds_the_quota_on_any_pod() -> None:
    there = model("there", *PODS)
    first, second = model("first"), model("second")
    other = model("other", namespace="other")
    wanted = (load(first, "p"), load(second, "q"), load(other, "q"), load(there, "p"))
    found = within_quotas(view(there, first, second, other), wanted, QUOTAS.get)
    assert found == (wanted[0], *wanted[2:])


def test_what_the_policy_demotes_anyway_makes_room() -> None:
    models = [model(name, "p", last_s=index) for index, name in enumerate("abcd")]
    own = Demote(models[3].key, "p", Tier.HOST, ActionReason.IDLE)
    assert within_quotas(view(*models), (own,), QUOTAS.get) == (own,)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["greedy", "other"]),
            st.sets(st.sampled_from(PODS)),
            st.integers(0, 9),
            st.integers(0, 1),
        ),
        max_size=8,
    ),
    st.sets(st.tuples(st.integers(0, 7), st.sampled_from(PODS))),
    st.integers(0, 1200),
)
def test_the_sum_is_within_the_quota_unless_copies_are_in_use(
    drawn: list[tuple[str, set[str], int, int]], loads: set[tuple[int, str]], quota: int
) -> None:
    models = [
        model(f"m{n}", *pods, namespace=namespace, last_s=last_s, ongoing=ongoing)
        for n, (namespace, pods, last_s, ongoing) in enumerate(drawn)
    ]
    wanted = tuple(load(models[n], pod) for n, pod in sorted(loads) if n < len(models))
    found = within_quotas(view(*models), wanted, {"greedy": quota}.get)
    copies = {(each.key, pod) for each in models for pod in each.holders}
    copies -= set(demoted(found))
    copies |= {(each.key, each.pod) for each in found if isinstance(each, Load)}
    ours = {copy for copy in copies if copy[0].startswith("greedy/")}
    used = {(each.key, pod) for each in models for pod in each.holders if each.uses[pod].ongoing}
    assert SIZE * len(ours) <= quota or ours <= used
    assert not any(key.startswith("other/") for key, _ in demoted(found))
    assert all(each in found for each in wanted if each.key.startswith("other/"))
