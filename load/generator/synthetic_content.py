"""Seeded texts of any length, of common English words (about a token each), and small images."""

import base64
import io
import random
from functools import cache
from typing import Final

import numpy as np
from PIL import Image

_COMMON_WORDS: Final = """
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
_SEQUENCE_WORDS: Final = 4096
_STRIDE: Final = 2_654_435_761
"""Knuth's multiplicative hash: texts of neighbouring rows start far apart in the sequence."""
_IMAGE_PIXELS: Final = 224
_IMAGES: Final = 8


class SyntheticText:
    """A random sequence of words; a text is a section of it, chosen by the request's row."""

    def __init__(self, seed: int) -> None:
        self._words = random.Random(seed).choices(_COMMON_WORDS.split(), k=_SEQUENCE_WORDS)

    def text(self, row: int, words: int) -> str:
        """A text of `words` words, the same for the same seed, row and length."""
        at = row * _STRIDE % _SEQUENCE_WORDS
        repeats = (at + words) // _SEQUENCE_WORDS + 1
        return " ".join((self._words * repeats)[at : at + words])


def synthetic_image(seed: int, row: int) -> bytes:
    """One of eight JPEGs of 224 x 224 pixels, in base64."""
    return _image(seed, row % _IMAGES)


@cache
def _image(seed: int, number: int) -> bytes:
    rng = np.random.default_rng((seed, number))
    coarse = rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)
    size = (_IMAGE_PIXELS, _IMAGE_PIXELS)
    image = Image.fromarray(coarse).resize(size, Image.Resampling.BICUBIC)
    file = io.BytesIO()
    image.save(file, "JPEG", quality=85)
    return base64.b64encode(file.getvalue())
