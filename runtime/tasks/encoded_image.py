"""Encoded images of a request: their sizes are read before any is decoded, one at a time.

A few kilobytes can decode to gigabytes: `open_images` refuses by the sizes in the headers.
"""

from __future__ import annotations

import base64
import binascii
import io
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from PIL import Image, UnidentifiedImageError

from runtime.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_PIXELS: Final = 50_000_000
"""Of one image, which is decoded to up to 8 bytes per pixel."""
MAX_REQUEST_PIXELS: Final = 200_000_000
"""Of all images of a request, which takes seconds to decode."""
_HUGE_PIXELS: Final = 16_000_000
"""Larger images are halved first: the model's own resizing needs 15 bytes a pixel."""
FORMATS: Final = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF")
"""Pillow's decoders that are used: the others are rarely needed, and some start programs."""


@dataclass(frozen=True, slots=True)
class EncodedImage:
    content: bytes
    where: str
    """Its place in the request, for error messages."""

    def pixels(self) -> int:
        """Width times height by the header. Raises InvalidRequest."""
        width, height = self._open().size
        if width * height > MAX_PIXELS:
            raise InvalidRequest(
                f"{self.where} has {width} x {height} pixels, {MAX_PIXELS} are allowed"
            )
        return width * height

    def decode(self) -> Image.Image:
        """The image, a huge one at half its size. Raises InvalidRequest."""
        try:
            image = self._open().convert("RGB")
            is_huge = image.width * image.height > _HUGE_PIXELS
            return image.reduce(2) if is_huge else image
        except (OSError, ValueError, SyntaxError) as error:
            raise InvalidRequest(f"{self.where} cannot be decoded: {error}") from error

    def _open(self) -> Image.Image:
        try:
            return Image.open(io.BytesIO(self.content), formats=FORMATS)
        except UnidentifiedImageError as error:
            allowed = ", ".join(FORMATS)
            raise InvalidRequest(
                f"{self.where} is not an image that can be read; formats are {allowed}"
            ) from error
        except Image.DecompressionBombError as error:
            raise InvalidRequest(
                f"{self.where} has too many pixels, {MAX_PIXELS} are allowed"
            ) from error
        except (OSError, ValueError, SyntaxError) as error:
            raise InvalidRequest(
                f"{self.where} is not an image that can be read: {error}"
            ) from error


def open_images(texts: Sequence[tuple[bytes, str]]) -> list[EncodedImage]:
    """Images from base64 with their places, within the pixel limits. Raises InvalidRequest."""
    images, total = [], 0
    for text, where in texts:
        try:
            image = EncodedImage(base64.b64decode(text, validate=True), where)
        except binascii.Error as error:
            raise InvalidRequest(f"{where} must be base64 of an encoded image: {error}") from error
        total += image.pixels()
        if total > MAX_REQUEST_PIXELS:
            raise InvalidRequest(
                f"the images of a request may have {MAX_REQUEST_PIXELS} pixels together; up to"
                f" {where} they have {total}"
            )
        images.append(image)
    return images
