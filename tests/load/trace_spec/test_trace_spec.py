from pathlib import Path

import pytest
import yaml

from load.errors import InvalidTraceSpec
from load.trace_spec import TRANSFORMS, Chain, SpecStage, open_trace, parse_spec
from tests.load.rows import column, named, rows, write

POISSON = "poisson:rate=20,models=5,zipf=0.9,duration=10s"


def test_reads_sources_transformations_and_groups() -> None:
    assert parse_spec("(gen:x=1 + fmt:p,w=2|rate=2)|slice=0:1h|map=5,by=z") == (
        Chain(
            (
                Chain(SpecStage("gen", {"x": "1"}), ()),
                Chain(
                    SpecStage("fmt", {"value": "p", "w": "2"}), (SpecStage("rate", {"value": "2"}),)
                ),
            ),
            (SpecStage("slice", {"value": "0:1h"}), SpecStage("map", {"value": "5", "by": "z"})),
        ),
    )


def test_quotes_protect_a_path(tmp_path: Path) -> None:
    path = write(tmp_path / "odd, name + (1|2.csv", "at_s,model\n1,m\n")
    assert len(named(f"'{path}'")) == 1
    assert len(named(f'arrivals:"{path}",tenant=t|rate=1')) == 1


def test_a_specification_is_a_plain_scalar_in_yaml() -> None:
    text = f"{POISSON}|rate=2|slice=0s:1h"
    assert yaml.safe_load(f"trace: {text}\n") == {"trace": text}


def test_same_seed_same_trace_at_every_iteration() -> None:
    text = f"({POISSON} + gamma:rate=5,cv=3,duration=10s)|rate=1.5|deadline=latency,latency=1s"
    trace = open_trace(text, seed=7)
    first = rows(trace)
    assert rows(trace) == first
    assert named(text, 7) == first
    assert named(text, 8) != first


def test_later_transformations_do_not_change_earlier_draws() -> None:
    alone = column(named(POISSON), "at_s")
    longer = named(f"{POISSON}|input=1:9|deadline=latency,latency=1s|slice=:5s")
    assert column(longer, "at_s") == [at for at in alone if at < 5.0]


def test_parts_of_a_mix_are_drawn_independently() -> None:
    found = named(f"{POISSON}|model=a + {POISSON}|model=b")
    first, second = ([row["at_s"] for row in found if row["model"] == name] for name in "ab")
    assert first != second
    assert abs(len(first) - len(second)) < 100


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        pytest.param("", "a source is missing", id="nothing"),
        pytest.param(" + ", "a source is missing", id="two of nothing"),
        pytest.param("|rate=2", "a source is missing", id="no source"),
        pytest.param(",rate=2", "file needs a path, as in file:PATH", id="no path, options"),
        pytest.param("poisson", "poisson needs rate=…", id="generator alone"),
        pytest.param("posson:rate=1", "no source 'posson'; did you mean poisson? there", id="typo"),
        pytest.param("azure-llm:", "azure-llm needs a path, as in azure-llm:PATH", id="no path"),
        pytest.param("azure-llm:window=3s", "azure-llm needs a path", id="options, no path"),
        pytest.param("poisson:", "poisson needs rate=…\npoisson needs duration=…", id="no value"),
        pytest.param(f"{POISSON},rate=3", "poisson: rate is given twice", id="twice"),
        pytest.param(f"{POISSON},x", "'x' must be of the form NAME=VALUE", id="no pair"),
        pytest.param(f"{POISSON},burst=3", "no parameter 'burst'; it has: rate, ", id="unknown"),
        pytest.param(f"{POISSON}|", "a transformation is missing after '|'", id="empty stage"),
        pytest.param(
            f"{POISSON}|rat=2", "no transformation 'rat'; did you mean rate", id="stage typo"
        ),
        pytest.param(f"{POISSON}|rate", "rate needs a value", id="no factor"),
        pytest.param(f"{POISSON}|rate=0", "rate must be greater than 0, was '0'", id="zero"),
        pytest.param(f"{POISSON}|rate=inf", "rate must be a finite number, was 'inf'", id="inf"),
        pytest.param(f"{POISSON}|rate=nan", "rate must be a finite number, was 'nan'", id="nan"),
        pytest.param(f"{POISSON}|slice=5", "slice must be START:END in durations", id="slice"),
        pytest.param(f"{POISSON}|slice=5s:5s", "slice must end after it starts", id="backwards"),
        pytest.param(f"{POISSON}|limit=-1", "limit must be greater than or equal to 1", id="limit"),
        pytest.param(f"{POISSON}|top=0", "top must be greater than or equal to 1", id="top"),
        pytest.param(f"{POISSON}|map=0", "map must be a number of models from 1", id="no models"),
        pytest.param(f"{POISSON}|map=a//b", "map must be a name without '/'", id="empty name"),
        pytest.param(f"{POISSON}|deadline=latency", "latency with latency=…", id="none"),
        pytest.param(f"{POISSON}|deadline=0s", "deadline must be greater than 0", id="no time"),
        pytest.param(f"{POISSON}|input=9:3", "LOW not above HIGH", id="sizes"),
        pytest.param("gamma:rate=1,duration=1m", "gamma needs cv=…", id="gamma"),
        pytest.param(
            "gamma:rate=1,duration=1m,cv=50", "cv must be less than or equal to 20", id="cv"
        ),
        pytest.param(
            "poisson:rate=1,duration=10", "duration must be a duration such as", id="no unit"
        ),
        pytest.param(
            "poisson:rate=1,duration=1h,drift=1us", "drift of at least a millionth", id="drift"
        ),
        pytest.param(
            "poisson:rate=1,duration=1h,models=2,names=a/b/c", "either models=… or", id="names"
        ),
        pytest.param(f"({POISSON}", "an unclosed parenthesis", id="open"),
        pytest.param(f"{POISSON})", "')' without '('", id="close"),
        pytest.param("'a.csv", "an unclosed quote '", id="quote"),
    ],
)
def test_every_mistake_is_reported(text: str, problem: str) -> None:
    with pytest.raises(InvalidTraceSpec) as caught:
        open_trace(text, seed=1)
    assert problem in str(caught.value)


def test_all_mistakes_are_reported_at_once() -> None:
    with pytest.raises(InvalidTraceSpec) as caught:
        open_trace("poisson:rate=-1|rate=x + gama:cv=1|slise=1", seed=1)
    assert [problem.partition(" must")[0] for problem in caught.value.problems[:2]] == [
        "poisson: rate",
        "poisson needs duration=…",
    ]
    assert len(caught.value.problems) == 5


@pytest.mark.parametrize("seed", [-1, 1.5, True])
def test_a_seed_is_a_whole_number(seed: int) -> None:
    with pytest.raises(InvalidTraceSpec, match="a seed must be a whole number"):
        open_trace(POISSON, seed=seed)


@pytest.mark.parametrize("options", ["within=gamma", "cv=2", "within=normal", "window=3s"], ids=str)
def test_parameters_of_other_formats_are_refused(tmp_path: Path, options: str) -> None:
    path = write(tmp_path / "t.csv", "minute,model,count\n1,m,1\n")
    with pytest.raises(InvalidTraceSpec, match="gentd26-per-minute"):
        open_trace(f"{path},{options}", seed=1)


VALUES = {
    "rate": "2", "rps": "3", "speed": "2", "shift": "1s", "slice": ":5s", "limit": "7",
    "only": "model-0", "top": "2", "map": "3", "deadline": "1s", "tenant": "t", "model": "m",
    "input": "1:9", "output": "8",
}  # fmt: skip


@pytest.mark.parametrize("name", TRANSFORMS)
def test_every_transformation_yields_a_valid_trace(name: str) -> None:
    assert named(f"{POISSON}|{name}={VALUES[name]}")


@pytest.mark.parametrize("name", sorted(set(TRANSFORMS) - {"rps", "only"}))
def test_every_transformation_accepts_an_empty_trace(name: str) -> None:
    assert named(f"{POISSON}|slice=1h:|{name}={VALUES[name]}") == []
