"""Owns what happens to pixels: an opened image of any mode becomes a small, upright one in 8-bit sRGB.

Everything dear is done after shrinking. Pillow is imported inside functions, for those who never need it.
"""

from __future__ import annotations

import io
import math
import struct
import zlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from PIL.Image import Image
    from PIL.ImageFile import ImageFile

# What Pillow's readers are known to raise on wrong bytes, beside OSError.
BROKEN: tuple[type[Exception], ...] = (ArithmeticError, AssertionError, AttributeError, EOFError, LookupError)
BROKEN += (RuntimeError, SyntaxError, SystemError, TypeError, ValueError, struct.error, zlib.error)
_UNUSABLE: tuple[type[Exception], ...] = (
    *BROKEN,
    OSError,
    MemoryError,
    ImportError,
)  # of what we can do without

_GAP = 2  # cheap steps stop at this many times the final size; a good filter does the rest
_STRIP = 1 << 20  # pixels converted at a time
_ORIENTATIONS = {2: 0, 3: 3, 4: 1, 5: 5, 6: 4, 7: 6, 8: 2}  # EXIF's number: the PIL.Image.Transpose for it
# Modes whose values cannot be averaged as they are: what to shrink them as, without and with transparency.
_AVERAGED = {"1": ("L", "LA"), "L": ("L", "LA"), "La": ("LA", "LA"), "RGBa": ("RGBA", "RGBA")}
_AVERAGED |= dict.fromkeys(("P", "PA", "RGB", "RGBX", "HSV"), ("RGB", "RGBA"))
_AVERAGED |= dict.fromkeys(("I;16", "I;16B", "I;16L", "I;16N"), ("I", "LA"))
# Images of wide numbers do not say what white is: (largest value up to, white), the first that holds.
_WHITES = {"I": ((255, 255), (65535, 65535)), "F": ((10, 1), (255, 255), (65535, 65535))}
_SPACES = {"L": "GRAY", "RGB": "RGB ", "CMYK": "CMYK", "LAB": "Lab "}  # mode: ICC colour space that fits
_BITS, _PHOTOMETRIC = 258, 262  # TIFF tags


def thumbnail_of(opened: ImageFile, size: int) -> tuple[Image, tuple[int, int]]:
    """Decode an opened image; return it at no more than `size` pixels a side, and its own upright size.

    The result is upright, in L, LA, RGB or RGBA, carries no metadata, and has alpha only if some of it shows.
    Raises OSError, MemoryError, PIL.Image.DecompressionBombError or one of BROKEN, as Pillow does.
    """
    from PIL.Image import Transpose

    whole, target = opened.size, _fit(opened.size, size)
    # A JPEG decoder can leave out most of the work; the box says where the image then lies.
    drafted = opened.draft(None, (target[0] * _GAP, target[1] * _GAP))
    opened.load()
    image = _shrunk(opened, drafted[1] if drafted else (0, 0, *opened.size), target)
    image = _in_srgb(_in_8_bits(image, opened), opened.info.get("icc_profile"))
    image.info = {}
    turn = _orientation(opened)
    if turn in _ORIENTATIONS:
        image = image.transpose(Transpose(_ORIENTATIONS[turn]))
    return image, whole if turn < 5 else (whole[1], whole[0])


def _fit(size: tuple[int, int], longest: int) -> tuple[int, int]:
    scale = min(1.0, longest / max(size))
    return max(1, round(size[0] * scale)), max(1, round(size[1] * scale))


def _shrunk(image: Image, box: tuple[float, float, float, float], target: tuple[int, int]) -> Image:
    """`box` of the image at `target` size: averaged by whole factors first, then resampled.

    Where pixels must be converted first, it goes strip by strip: a copy of all takes up to 8 bytes each.
    """
    from PIL import Image as module

    across, down = (max(1, int(box[i + 2] / target[i] / _GAP)) for i in (0, 1))
    mode = _AVERAGED.get(image.mode, (image.mode, image.mode))[image.has_transparency_data]
    if mode == image.mode and mode not in ("LA", "RGBA"):  # alpha makes Pillow convert, to multiply by it
        small = image if across == down == 1 else image.reduce((across, down))
    else:
        small = module.new(mode, (math.ceil(image.width / across), math.ceil(image.height / down)))
        rows = down * max(1, _STRIP // image.width // down)
        for top in range(0, image.height, rows):
            strip = image.crop((0, top, image.width, min(top + rows, image.height))).convert(mode)
            small.paste(strip.reduce((across, down)), (0, top // down))
    return small.resize(target, module.Resampling.LANCZOS, (0, 0, box[2] / across, box[3] / down))


def _in_8_bits(image: Image, opened: ImageFile) -> Image:
    """Integers and floats scaled to 0..255, where Pillow would cut them off; other modes as they are."""
    if image.mode not in _WHITES:
        return image
    black, white = _range(opened)
    scale = 255 / ((white - black) or 1)
    return image.convert("F").point(lambda value: value * scale + (0.5 - black * scale)).convert("L")


def _range(opened: ImageFile) -> tuple[float, float]:
    """The values that mean black and white."""
    tags = getattr(opened, "tag_v2", {})
    bits = tags.get(_BITS, (16,))[0]
    black, white = 0.0, 65535.0
    if opened.mode.startswith("I;16"):
        white = 4095 if bits == 12 else 65535
    elif opened.format != "PPM":  # whose reader has scaled to 65535
        low, high = (float(value) for value in opened.getextrema())  # type: ignore[arg-type]
        if not math.isfinite(low + high):
            white = 1
        elif low < 0 or high > 65535:
            black, white = low, high
        else:
            white = next(white for most, white in _WHITES[opened.mode] if high <= most)
            if bits == 16:  # signed, or it would not be in I
                white = 32767
    return (white, black) if tags.get(_PHOTOMETRIC) == 0 else (black, white)  # 0: white is zero


def _in_srgb(image: Image, profile: bytes | None) -> Image:
    """Colours as the embedded ICC profile has them; with none or a wrong one, as usual for the mode."""
    alpha = image.getchannel("A") if image.mode in ("LA", "RGBA") else None
    if image.mode not in ("L", "CMYK", "LAB"):
        image = image.convert("L" if image.mode == "LA" else "RGB")
    if profile:
        image = _profiled(image, profile)
    if image.mode not in ("L", "RGB"):
        image = image.convert("RGB")
    if alpha and alpha.getextrema() != (255, 255):
        image.putalpha(alpha)
    return image


def _profiled(image: Image, profile: bytes) -> Image:
    from PIL import ImageCms

    try:
        source = ImageCms.ImageCmsProfile(io.BytesIO(profile))
        if source.profile.xcolor_space != _SPACES[image.mode]:
            return image  # such as the RGB profile that many a grey JPEG carries
        target = ImageCms.createProfile("sRGB")
        converted = ImageCms.profileToProfile(image, source, target, outputMode="RGB")
    except ImageCms.PyCMSError:
        return image
    except _UNUSABLE:
        return image
    if converted is None:  # only when asked to work in place
        return image
    return converted.convert(image.mode) if image.mode == "L" else converted


def _orientation(opened: ImageFile) -> int:
    """EXIF's number, 1 where it is missing or wrong. Ask when the image is loaded: a PNG may have it last."""
    try:
        number = opened.getexif().get(0x0112, 1)
    except _UNUSABLE:
        return 1
    return number if isinstance(number, int) and 1 <= number <= 8 else 1
