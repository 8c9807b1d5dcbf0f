"""Conditions of graphs: what exists by GJSON's rules, and what is refused."""

from fnmatch import fnmatchcase

import pytest
from hypothesis import given
from hypothesis import strategies as st

from registry.domain.graph import BadPathError, parse_path

# GJSON's own example document, and what its documentation says of it (SYNTAX.md).
DOCUMENT = {
    "name": {"first": "Tom", "last": "Anderson"},
    "age": 37,
    "children": ["Sara", "Alex", "Jack"],
    "fav.movie": "Deer Hunter",
    "none": None,
    "good": True,
    "friends": [
        {"first": "Dale", "last": "Murphy", "age": 44, "nets": ["ig", "fb", "tw"]},
        {"first": "Roger", "last": "Craig", "age": 68, "nets": ["fb", "tw"]},
        {"first": "Jane", "last": "Murphy", "age": 47, "nets": ["ig", "tw"]},
    ],
}


@pytest.mark.parametrize(
    "path",
    [
        "name.last",
        "age",
        "children",
        "children.0",
        "child*.2",
        "c?ildren.0",
        r"fav\.movie",
        "none",
        "@this.age",
        "friends.#.first",
        "friends.#",
        "friends.1.last",
        "children.#",
        'friends.#(last=="Murphy").first',
        'friends.#(last=="Murphy")#.first',
        "friends.#(age>45)#.last",
        'friends.#(first%"D*").last',
        'friends.#(first!%"D*").last',
        'children.#(=="Sara")',
        'children.#(!%"*a*")',
        'friends.#(nets.#(=="fb"))#.first',
        "[@this].#(age==37)",
        '[@this].#(name.first=="Tom")',
        "[@this].#(name.first==Tom)",
        "[@this].#(good==true)",
        'friends.#(last=="Nobody")#',
        'friends.#(nets.#(=="no"))#|@this',
        'friends.#(last=="Murphy")#.first|0',
        "friends.#.nets.#",
        "friends|0|first",
        "good",
        "friends.#(first)",
        'friends.#(age>="47")',
        "friends.#(age<=44)",
        "friends.#(age!=44)",
    ],
)
def test_what_is_there_exists(path: str) -> None:
    assert parse_path(path).exists(DOCUMENT)


@pytest.mark.parametrize(
    "path",
    [
        "name.middle",
        "children.3",
        "children.first",
        "fav.movie",
        "age.years",
        "friends.first",
        'friends.#(last=="Nobody").first',
        "friends.#(age>100)",
        'children.#(=="Bob")',
        "[@this].#(age==38)",
        "name.#",
        'friends.#(last=="Murphy")#.first|2',
        "x*",
        "none.x",
        'friends.#(first=="Dale").middle',
        "[@this].#(good==false)",
        "[@this].#(none==null)",
        'friends.#(middle!="x")',
        "children.-1",
    ],
)
def test_what_is_missing_does_not_exist(path: str) -> None:
    assert not parse_path(path).exists(DOCUMENT)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("", "1 to 1000 characters"),
        ("a..b", "empty part"),
        ("a.", "empty part"),
        ("@reverse", "@this"),
        ("{ .input == 1 }", "outside of the subset"),
        ("[a,b]", "outside of the subset"),
        ("!true", "outside of the subset"),
        ("a.#(b==1", "not closed"),
        ('a.#(b=="1)', "not closed"),
        ("a.#()", "empty query"),
        ("a.#(b==~true)", "`~`"),
        ("a.#(b==1)x", "only `#`"),
        ("#(" * 240 + "a" + ")" * 240, "100 are allowed"),
        ("#|" * 499 + "#", "100 are allowed"),
    ],
)
def test_what_is_outside_of_the_subset_is_refused(path: str, message: str) -> None:
    with pytest.raises(BadPathError, match=message):
        parse_path(path)


def test_the_deepest_path_is_found() -> None:
    path = parse_path("#(" * 98 + "@this" + ")" * 98)
    assert not path.exists(DOCUMENT)
    document: list[object] = []
    for _ in range(100):
        document = [document]
    assert path.exists(document)
    assert parse_path("#|" * 98 + "#").exists(document)


def test_many_wildcards_take_no_exponential_time() -> None:
    path = parse_path("*a" * 400 + "*b")
    assert not path.exists({"a" * 10_000: 1})
    assert path.exists({"xa" * 1_000 + "b": 1})


@given(st.text("ab*?", min_size=1, max_size=8), st.text("ab*", max_size=8))
def test_wildcards_match_as_those_of_a_shell(pattern: str, key: str) -> None:
    assert parse_path(f"@this.{pattern}").exists({key: 1}) == fnmatchcase(key, pattern)


_KEYS = st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=1, max_size=4)
_DOCUMENTS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_KEYS, inner, max_size=3),
    max_leaves=8,
)


@given(document=_DOCUMENTS, data=st.data())
def test_a_walk_of_a_document_exists_and_one_step_beyond_does_not(
    document: object, data: st.DataObject
) -> None:
    walk, value = ["@this"], document
    while isinstance(value, (dict, list)) and value and data.draw(st.booleans()):
        if isinstance(value, dict):
            key = data.draw(st.sampled_from(sorted(value)))
            value = value[key]
        else:
            key = str(data.draw(st.integers(0, len(value) - 1)))
            value = value[int(key)]
        walk.append(key)
    assert parse_path(".".join(walk)).exists(document)
    assert not parse_path(".".join([*walk, "no-such-key"])).exists(document)


@given(st.text(max_size=30))
def test_any_text_is_a_path_or_refused(text: str) -> None:
    try:
        path = parse_path(text)
    except BadPathError:
        return
    path.exists(DOCUMENT)
