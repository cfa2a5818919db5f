"""Owns the `thumbnail` handler: any image in, one small, upright, sRGB image out.

The work is `make_thumbnail`, an ordinary function. It raises `Refused` for what no second attempt can mend
(the handler discards such a job, with the reason); other errors, such as a full disk, are for a retry.
Pillow is imported inside functions: a worker that never makes a thumbnail does not pay for it.
"""

from __future__ import annotations

import errno
import io
import os
import stat
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from handlers.pixels import BROKEN, thumbnail_of
from handlers.replace import replace_file
from pool import Discard, handler

if TYPE_CHECKING:
    from PIL.Image import Image
    from PIL.ImageFile import ImageFile

MAX_PIXELS = 200_000_000  # the largest telephone cameras make 199.8 million
MAX_SIDE = 16_383  # pixels: what WebP can hold, the least of the output formats

_OUTPUTS = {".jpg": "JPEG", ".jpeg": "JPEG", ".png": "PNG", ".webp": "WEBP", ".gif": "GIF"}
# Named one by one, the usual first: EPS would run Ghostscript, FITS would inflate without a limit.
_INPUTS = ["JPEG", "PNG", "WEBP", "GIF", "TIFF", "BMP", "JPEG2000", "PPM", "ICO", "ICNS", "PSD"]
_INPUTS += ["QOI", "PCX", "SGI", "TGA"]
_HEAVY = {"WEBP": 4, "JPEG2000": 5, "AVIF": 3}  # decoders that take so many times the usual 4 bytes a pixel
_SPARSE_PIXELS, _SPARSE_RATIO = 64_000_000, 2_000  # above so many pixels, so many in a byte are a bomb


class Refused(Exception):
    """This source, dest or option can never give a thumbnail; the text says why, for a person."""


@handler("thumbnail", timeout=60, max_attempts=5)
def thumbnail(
    source: str,
    dest: str,
    size: int = 256,
    *,
    quality: int = 85,
    background: str = "white",
    max_pixels: int = MAX_PIXELS,
) -> dict[str, str | int]:
    """Make a thumbnail as a job; see `make_thumbnail`. Raises Discard for what can never work."""
    try:
        return make_thumbnail(source, dest, size, quality=quality, background=background, max_pixels=max_pixels)
    except Refused as reason:
        raise Discard(str(reason)) from reason


def make_thumbnail(
    source: str,
    dest: str,
    size: int = 256,
    *,
    quality: int = 85,
    background: str = "white",
    max_pixels: int = MAX_PIXELS,
) -> dict[str, str | int]:
    """Write to `dest` the image `source`, no side longer than `size` pixels, never enlarged.

    The extension of `dest` (.jpg, .jpeg, .png, .webp, .gif) decides the format; missing folders are created.
    `quality` (1 to 100) is for JPEG and WebP. `background`, a CSS colour, goes behind transparency where the
    format has none (JPEG, GIF). A source of more than `max_pixels` is not decoded; WebP may have a quarter
    of them, AVIF a third, JPEG 2000 a fifth, as their decoders take so much more memory. `dest` is its old
    self or complete at all times, has the permissions that the umask gives, and carries no metadata.

    Returns dest, width, height, source_width and source_height (upright, in pixels), format, bytes.

    Raises:
        Refused: what can never work.
        OSError: what may work later, such as a full disk.
    """
    kind, fill = _check(source, dest, size, quality, background, max_pixels)
    with _pillow_settings(max_pixels), _refusing(source), open(source, "rb") as file:
        image, source_size = _read(file, size, max_pixels)
    data = _encoded(image, kind, quality, fill)
    replace_file(dest, data)
    return {
        "dest": dest,
        "width": image.width,
        "height": image.height,
        "source_width": source_size[0],
        "source_height": source_size[1],
        "format": kind,
        "bytes": len(data),
    }


def _check(
    source: str, dest: str, size: int, quality: int, background: str, max_pixels: int
) -> tuple[str, tuple[int, ...]]:
    """The output format and the background's red, green, blue. Raises Refused, having read no image."""
    numbers = ("size", size, MAX_SIDE), ("quality", quality, 100), ("max_pixels", max_pixels, 1 << 31)
    for name, value, most in numbers:
        if type(value) is not int or not 1 <= value <= most:
            raise Refused(f"{name} must be a whole number from 1 to {most}, not {value!r}")
    kind = _OUTPUTS.get(os.path.splitext(str(dest))[1].lower())
    if kind is None:
        raise Refused(f"cannot write {dest!r}: the extension must be one of {', '.join(_OUTPUTS)}")
    found, former = _stat(source), _stat(dest)
    if found is None:
        raise Refused(f"{source!r} does not exist")
    if not stat.S_ISREG(found.st_mode):  # opening a named pipe would wait for ever
        what = "a directory" if stat.S_ISDIR(found.st_mode) else "not a regular file"
        raise Refused(f"{source!r} is {what}")
    if not found.st_size:
        raise Refused(f"{source!r} is empty")
    if former and os.path.samestat(found, former):
        raise Refused(f"source and dest are the same file, {source!r}")
    if former and stat.S_ISDIR(former.st_mode):
        raise Refused(f"cannot write {dest!r}: it is a directory")
    try:
        from PIL import ImageColor
    except ImportError as error:
        raise RuntimeError("thumbnails need Pillow: pip install 'jobpool[thumbnails]'") from error
    try:
        return kind, ImageColor.getrgb(background)[:3]
    except (ValueError, TypeError, AttributeError):
        raise Refused(f"background {background!r} is not a colour; try a name, or #rrggbb") from None


def _stat(path: str) -> os.stat_result | None:
    if not isinstance(path, str):  # a number would be taken for an open file of this process
        raise Refused(f"{path!r} cannot be the name of a file")
    try:
        return os.stat(path)
    except FileNotFoundError:
        return None
    except ValueError:
        raise Refused(f"{path!r} cannot be the name of a file") from None
    except OSError as error:
        if error.errno in (errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG):
            raise Refused(f"{path!r} cannot be a file: {error.strerror}") from None
        raise


@contextmanager
def _pillow_settings(max_pixels: int) -> Iterator[None]:
    """Our limits and no warnings, for this block only: other handlers in the process have their own."""
    from PIL import Image, ImageFile

    former = Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            # Pillow warns above this and refuses above twice this, also for images inside ICO, ICNS and TIFF.
            Image.MAX_IMAGE_PIXELS = (max_pixels + 1) // 2
            ImageFile.LOAD_TRUNCATED_IMAGES = False
            yield
        finally:
            Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES = former


@contextmanager
def _refusing(source: str) -> Iterator[None]:
    """Turn what a wrong image makes Pillow raise into Refused; an error of the disk stays what it is."""
    from PIL import Image, UnidentifiedImageError

    try:
        yield
    except Refused as reason:
        raise Refused(f"{source!r} {reason}") from None
    except Image.DecompressionBombError as error:
        raise Refused(f"{source!r} is too large: {error}") from error
    except MemoryError:
        raise Refused(f"{source!r} needs more memory than this process may have") from None
    except UnidentifiedImageError:
        raise Refused(f"{source!r} is not an image of a kind we can read") from None
    except OSError as error:
        if error.errno not in (None, errno.EINVAL):  # EINVAL: a wrong image sent us to an impossible offset
            raise
        raise Refused(f"{source!r} cannot be read: {str(error)[:200]}") from error
    except BROKEN as error:
        raise Refused(f"{source!r} cannot be read: {str(error)[:200]}") from error


def _read(file: io.BufferedReader, size: int, max_pixels: int) -> tuple[Image, tuple[int, int]]:
    """The thumbnail and its source's upright size; what the header declares is judged before decoding."""
    from PIL import Image

    head, formats = file.peek(8), _INPUTS
    if head[:4] == b"\0\0\1\0":  # an ICO, which Pillow decodes on opening
        Image.MAX_IMAGE_PIXELS = min(1 << 22, Image.MAX_IMAGE_PIXELS or 0)
    if head[4:8] == b"ftyp":  # newer Pillows have AVIF; HEIF is there where the user has registered a plugin
        Image.init()
        formats = [each for each in ("AVIF", "HEIF") if each in Image.OPEN]
    with Image.open(file, formats=formats) as opened:
        _check_header(opened, os.fstat(file.fileno()).st_size, max_pixels)
        # From here on Pillow refuses above twice this: an icon or a tile has no reason to exceed its header.
        Image.MAX_IMAGE_PIXELS = max(opened.width * opened.height, 1 << 22)
        return thumbnail_of(opened, size)


def _check_header(opened: ImageFile, length: int, max_pixels: int) -> None:
    pixels = opened.width * opened.height
    most = max_pixels // _HEAVY.get(opened.format or "", 1)
    if pixels > most:
        raise Refused(f"has {opened.width} x {opened.height} pixels, more than the {most} allowed")
    if pixels > max(_SPARSE_PIXELS, length * _SPARSE_RATIO):
        raise Refused(f"looks like a bomb: {opened.width} x {opened.height} pixels in {length} bytes")


def _encoded(image: Image, kind: str, quality: int, background: tuple[int, ...]) -> bytes:
    """The file's bytes, made in memory so that writing them meets the disk's errors only, and at once."""
    from PIL import Image as module

    if kind in ("JPEG", "GIF") and image.mode in ("LA", "RGBA"):
        canvas = module.new("RGB", image.size, background)
        canvas.paste(image.convert("RGB"), mask=image.getchannel("A"))
        image = canvas
    buffer = io.BytesIO()
    if kind == "JPEG":
        image.save(buffer, kind, quality=quality, optimize=True, progressive=True)
    else:
        image.save(buffer, kind, quality=quality)
    return buffer.getvalue()
