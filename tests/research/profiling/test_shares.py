"""Shares as the verb takes them."""

import pytest

from pilotlight.errors import InvalidInput
from research.profiling.command import parse_shares


@pytest.mark.parametrize("text", ["0,50", "half", "50,,100", "101", ""])
def test_shares_are_percentages(text: str) -> None:
    with pytest.raises(InvalidInput, match="--shares must be percentages of 1 to 100"):
        parse_shares(text)
    assert parse_shares("100, 50,50") == [50, 100]
    assert parse_shares(None) == []
