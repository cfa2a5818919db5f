"""Makes a folder of varied large images to try things on: `python scripts/sample_photos.py DIR`.

Mostly JPEGs as cameras make them, in every EXIF orientation, and some of each other kind that people upload.
An arrow and the word UP point to the sky. Picture N of a seed is always the same, however many are made; one
that exists is left alone, so that an interrupted run can be run again.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image, ImageChops, ImageDraw, ImageFont

SHAPES = ((3, 2), (4, 3), (16, 9), (2, 3), (3, 4), (1, 1), (3, 1))
FOLDERS = ("", "", "holiday", "holiday/day 2", "products", "scans")
ORIENTATION = 0x0112  # EXIF tag
# For each EXIF orientation, what the camera did to the upright picture: the inverse of what a viewer must do.
STORED = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_90,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_270,
}


@dataclass(frozen=True)
class Kind:
    """One sort of file: its largest size in megapixels, what to make of an RGB picture, how to save that."""

    name: str
    suffix: str
    megapixels: float
    prepare: Callable[[Image.Image], Image.Image]
    options: dict[str, Any]
    turned: bool = False  # whether its EXIF may tell an orientation


def _as_is(picture: Image.Image) -> Image.Image:
    return picture


def _see_through(picture: Image.Image) -> Image.Image:
    mask = Image.new("L", picture.size, 0)
    ImageDraw.Draw(mask).ellipse((0, 0, *picture.size), fill=255)
    picture.putalpha(mask)
    return picture


def _deep(picture: Image.Image) -> Image.Image:
    grey = picture.convert("L")  # each byte twice is the same grey in 16 bits
    return Image.frombytes("I;16", grey.size, Image.merge("LA", (grey, grey)).tobytes())


CAMERA = Kind("camera", "jpg", 24, _as_is, {"quality": 88}, turned=True)
OTHERS = (
    Kind("progressive", "jpg", 16, _as_is, {"quality": 85, "progressive": True}, turned=True),
    Kind("cmyk", "jpg", 12, lambda picture: picture.convert("CMYK"), {"quality": 90}),
    Kind("grey", "jpeg", 20, lambda picture: picture.convert("L"), {"quality": 85}),
    Kind("rgb", "png", 6, _as_is, {"compress_level": 1}),
    Kind("alpha", "png", 5, _see_through, {"compress_level": 1}),
    Kind("palette", "png", 8, lambda picture: picture.convert("P"), {"compress_level": 1}),
    Kind("deep", "png", 6, _deep, {"compress_level": 1}),
    Kind("web", "webp", 5, _as_is, {"quality": 80, "method": 0}, turned=True),
    Kind("scan", "tif", 10, _as_is, {"compression": "tiff_lzw"}),
    Kind("flat", "gif", 4, lambda picture: picture.convert("P"), {}),
    Kind("plain", "bmp", 4, _as_is, {}),
)


def main() -> int:
    """Make the pictures; returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split(":")[0])
    parser.add_argument("folder", type=Path, metavar="DIR", help="where to put them; made when missing")
    parser.add_argument("--count", type=int, default=60, help="how many (default: 60)")
    parser.add_argument("--seed", type=int, default=1, help="another seed, other pictures (default: 1)")
    options = parser.parse_args()
    start = time.monotonic()
    try:
        made, bytes_made = make(options.folder, options.count, options.seed)
    except KeyboardInterrupt:
        print("\ninterrupted; run it again to make the rest", file=sys.stderr)
        return 130
    if sys.stdout.isatty():
        print("\r\033[K", end="")
    print(
        f"{options.folder}: {made} pictures made, {bytes_made / 1e6:.0f} MB"
        f" in {time.monotonic() - start:.1f} s; {options.count - made} were there"
    )
    return 0


def make(folder: Path, count: int = 60, seed: int = 1) -> tuple[int, int]:
    """Make what is missing of `count` pictures below `folder`; return how many files and bytes that was."""
    wanted = ((folder, seed, number) for number in range(1, count + 1))
    made = bytes_made = 0
    several = min(os.cpu_count() or 1, 4, max(1, count))
    context = multiprocessing.get_context("spawn")
    # Ctrl-C reaches the children too; only the parent answers it.
    with context.Pool(several, signal.signal, (signal.SIGINT, signal.SIG_IGN)) as pool:
        for done, size in enumerate(pool.imap_unordered(_make_one, wanted), 1):
            made += size > 0
            bytes_made += size
            if sys.stdout.isatty():
                print(f"\r{done} of {count}", end="", flush=True)
    return made, bytes_made


def _make_one(wanted: tuple[Path, int, int]) -> int:
    """Make one picture, unless it exists. Returns the bytes written."""
    folder, seed, number = wanted
    chance = random.Random(f"{seed}/{number}")
    kind = CAMERA if number % 3 else OTHERS[number // 3 % len(OTHERS)]
    orientation = number % 8 + 1 if kind.turned else 1
    size = _size(chance, kind.megapixels)
    target = folder / chance.choice(FOLDERS) / f"{number:04}-{kind.name}-turned{orientation}.{kind.suffix}"
    if target.exists():
        return 0
    picture = paint(size, chance, f"UP  {number}")
    options = dict(kind.options)
    if orientation in STORED:
        picture = picture.transpose(STORED[orientation])
        exif = Image.Exif()
        exif[ORIENTATION] = orientation
        options["exif"] = exif.tobytes()
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f".{target.name}.part")  # always the same, so the next run replaces what is left
    with part.open("wb") as file:
        kind.prepare(picture).save(file, Image.registered_extensions()[f".{kind.suffix}"], **options)
    part.replace(target)
    return target.stat().st_size


def _size(chance: random.Random, most: float) -> tuple[int, int]:
    """Width and height, a quarter of them as large as the kind may be."""
    across, down = chance.choice(SHAPES)
    megapixels = most * (1 if chance.random() < 0.25 else chance.uniform(0.15, 0.7))
    unit = (megapixels * 1e6 / across / down) ** 0.5
    return round(across * unit), round(down * unit)


def paint(size: tuple[int, int], chance: random.Random, text: str) -> Image.Image:
    """A landscape in RGB: sky, ground, things on it, grain as of a camera, an arrow up and the text."""
    width, height = size
    rows = b"".join(bytes(_sky_or_ground(y / 63, chance)) for y in range(64))
    picture = Image.frombytes("RGB", (1, 64), rows).resize(size, Image.Resampling.BICUBIC)
    draw = ImageDraw.Draw(picture)
    for _ in range(40):
        far = chance.random()
        x, y = chance.randrange(width), round(height * (0.45 + 0.5 * far))
        reach = round(max(size) * (0.02 + 0.1 * far))
        shade = tuple(chance.randrange(30, 200) for _ in range(3))
        if chance.random() < 0.5:
            draw.ellipse((x - reach, y - reach // 2, x + reach, y + reach // 2), fill=shade)
        else:
            draw.polygon([(x - reach, y), (x, y - reach), (x + reach, y)], fill=shade)
    _point_up(draw, size, text)
    return _grainy(picture, chance)


def _sky_or_ground(depth: float, chance: random.Random) -> tuple[int, int, int]:
    wobble = chance.randrange(12)
    if depth < 0.5:
        return 90 + round(200 * depth), 150 + round(140 * depth), 225 + wobble
    return 60 + wobble, 150 - round(90 * depth), 50 + wobble


def _point_up(draw: ImageDraw.ImageDraw, size: tuple[int, int], text: str) -> None:
    width, height = size
    unit, middle = min(size) / 10, width / 2
    tip = height * 0.05
    draw.polygon([(middle, tip), (middle - unit, tip + unit), (middle + unit, tip + unit)], fill=(220, 30, 30))
    draw.rectangle((middle - unit / 3, tip + unit, middle + unit / 3, tip + 3 * unit), fill=(220, 30, 30))
    font = ImageFont.load_default(size=unit)
    place = (middle, tip + 3.6 * unit)
    draw.text(place, text, fill="white", stroke_fill="black", stroke_width=2, font=font, anchor="mm")


def _grainy(picture: Image.Image, chance: random.Random) -> Image.Image:
    """Noise makes it as hard to compress as a photo; a tile of it, shifted at random, is quick to make."""
    side, strength = 512, chance.randrange(5, 16)
    noise = Image.frombytes("RGB", (side, side), chance.randbytes(side * side * 3))
    tile = noise.point(lambda value: value // strength)
    grain = Image.new("RGB", picture.size)
    for top in range(0, picture.height, side):
        for left in range(-chance.randrange(side), picture.width, side):
            grain.paste(tile, (left, top))
    return ImageChops.add(picture, grain, 1, -128 // strength)


if __name__ == "__main__":
    sys.exit(main())
