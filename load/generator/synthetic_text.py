"""Texts of any length from a seeded sequence of common English words: about one token a word."""

from __future__ import annotations

import random
from typing import Final

_COMMON: Final = """
about after again air all also an and answer any are as at away back be because been before
began best better between big book both boy but by call came can car change city close come
could country day did different do does done door down draw each early earth eat end enough
even every example eye face family far farm father feet few find first five follow food for
form found four from full gave get girl give go good got great group grow had half hand hard
has have he head hear help her here high him his home horse hot hour house how idea if in
into is it just keep kind know land large last late learn leave left let letter life light
like line list little live long look made make man many may me mean men might mile more most
mother move much music must my name near need never new next night no north not note now
number of off often old on once one only open or order other our out over own page paper part
people picture place plan plant play point read real right river road room rule run said same
saw say school sea second see seem self sentence set she ship short should show side simple
since small so some song soon sound spell stand start state step still stop story study such
sun sure take talk tell ten than that the their them then there these they thing think this
those thought three through time to together too took top town travel tree try turn two under
until up us use very voice wait walk want war warm was watch water way we week well went were
what when where which while white who whole why will wind with without wood word work world
would write year you young your
"""
_LENGTH: Final = 4096
_STRIDE: Final = 2_654_435_761
"""Knuth's multiplicative hash: neighbouring rows begin far apart in the sequence."""


class SyntheticText:
    """A sequence of words drawn once; a text is a stretch of it, chosen by the request's row."""

    def __init__(self, seed: int) -> None:
        self._drawn = random.Random(seed).choices(_COMMON.split(), k=_LENGTH)

    def text(self, row: int, words: int) -> str:
        """A text of so many words, the same for the same seed, row and length."""
        at = row * _STRIDE % _LENGTH
        repeats = (at + words) // _LENGTH + 1
        return " ".join((self._drawn * repeats)[at : at + words])
