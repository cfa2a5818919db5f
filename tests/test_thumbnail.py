"""The thumbnail handler: any image in, one small, upright, sRGB image out, or a reason why never."""

from __future__ import annotations

import errno
import io
import json
import os
import random
import stat
import struct
import subprocess
import sys
import warnings
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("PIL")
from PIL import Image, ImageChops, ImageCms, ImageFile, ImageStat, UnidentifiedImageError

import handlers.thumbnail
from handlers.thumbnail import Refused, make_thumbnail, thumbnail
from pool import Discard

RED, GREEN, BLUE, YELLOW, WHITE, GREY = (
    (255, 0, 0),
    (0, 255, 0),
    (0, 0, 255),
    (255, 255, 0),
    (255, 255, 255),
    (128, 128, 128),
)
# What a camera held in each of EXIF's ways has stored of an upright picture: the inverse of what viewers do.
STORED = {
    1: None,
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_90,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_270,
}
Pixel = tuple[int, ...]


@pytest.fixture(autouse=True)
def nothing_is_warned_about() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def saved(path: Path, image: Image.Image, **options: Any) -> str:
    image.save(path, **options)
    return str(path)


def quarters(size: tuple[int, int] = (1600, 1200)) -> Image.Image:
    """Red, green above blue, yellow."""
    tiny = Image.new("RGB", (2, 2))
    for place, colour in zip(((0, 0), (1, 0), (0, 1), (1, 1)), (RED, GREEN, BLUE, YELLOW), strict=True):
        tiny.putpixel(place, colour)
    return tiny.resize(size, Image.Resampling.NEAREST)


def result(source: str, dest: Path, size: int = 64, **options: Any) -> Image.Image:
    make_thumbnail(source, str(dest), size, **options)
    with Image.open(dest) as image:
        image.load()
        return image


def colour(image: Image.Image, x: float = 0.5, y: float = 0.5) -> Pixel:
    found = image.convert("RGBA" if image.mode in ("LA", "RGBA") else "RGB").getpixel(
        (int(x * (image.width - 1)), int(y * (image.height - 1)))
    )
    assert isinstance(found, tuple)
    return tuple(int(value) for value in found)


def near(found: Pixel, wanted: Pixel, most: int = 6) -> bool:
    return len(found) == len(wanted) and all(abs(a - b) <= most for a, b in zip(found, wanted, strict=True))


def assert_upright_quarters(image: Image.Image) -> None:
    corners = [colour(image, x, y) for y in (0.2, 0.8) for x in (0.2, 0.8)]
    for found, wanted in zip(corners, (RED, GREEN, BLUE, YELLOW), strict=True):
        assert near(found, wanted, 12), corners


def png_bytes(width: int, height: int, bits: int, kind: int, rows: bytes, *chunks: tuple[bytes, bytes]) -> bytes:
    """A PNG that Pillow itself would not write."""
    header = struct.pack(">IIBBBBB", width, height, bits, kind, 0, 0, 0)
    parts = [(b"IHDR", header), *chunks, (b"IDAT", zlib.compress(rows)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data)) for name, data in parts
    )


def tiff_bytes(tags: dict[int, int], data: bytes) -> bytes:
    """A little-endian TIFF of short and long tags, its data at offset 512."""
    out = b"II*\0" + struct.pack("<IH", 8, len(tags))
    out += b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in sorted(tags.items()))
    return (out + bytes(4)).ljust(512, b"\0") + data


def refusal(source: Path | str, dest: Path, **options: Any) -> str:
    """The reason, having made sure that no trace of an output is left."""
    with pytest.raises(Discard) as caught:
        thumbnail(str(source), str(dest), **options)
    assert not dest.exists()
    assert not dest.parent.is_dir() or not [each for each in os.listdir(dest.parent) if each.endswith(".part")]
    return str(caught.value)


def run(code: str, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run Python code in a process of its own, with our packages on its path."""
    root = str(Path(handlers.thumbnail.__file__).parent.parent)
    paths = os.pathsep.join([root, os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": paths},
        **options,
    )


# Size and direction


@pytest.mark.parametrize(
    ("source", "wanted"), [((1600, 1200), (64, 48)), ((300, 1000), (19, 64)), ((500, 500), (64, 64))]
)
def test_the_longer_side_gets_the_size_and_the_shape_stays(
    tmp_path: Path, source: tuple[int, int], wanted: tuple[int, int]
) -> None:
    for suffix in ("jpg", "png"):
        made = result(saved(tmp_path / f"in.{suffix}", quarters(source)), tmp_path / "out.png")
        assert made.size == wanted
        assert_upright_quarters(made)


def test_a_small_image_is_never_enlarged(tmp_path: Path) -> None:
    assert result(saved(tmp_path / "in.png", quarters((40, 30))), tmp_path / "out.jpg").size == (40, 30)


@pytest.mark.parametrize(("source", "wanted"), [((20000, 1), (64, 1)), ((1, 20000), (1, 64))])
@pytest.mark.parametrize("suffix", ["jpg", "png"])
def test_the_thinnest_image_keeps_one_pixel(
    tmp_path: Path, source: tuple[int, int], wanted: tuple[int, int], suffix: str
) -> None:
    made = result(saved(tmp_path / f"in.{suffix}", Image.new("RGB", source, RED)), tmp_path / "out.png")
    assert made.size == wanted
    assert near(colour(made), RED)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("suffix", ["jpg", "png", "webp", "tif"])
def test_every_exif_orientation_comes_out_upright(tmp_path: Path, orientation: int, suffix: str) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    turn = STORED[orientation]
    picture = quarters() if turn is None else quarters().transpose(turn)
    source = saved(tmp_path / f"in.{suffix}", picture, exif=exif)
    report = make_thumbnail(source, str(tmp_path / "out.png"), 64)
    assert (report["source_width"], report["source_height"]) == (1600, 1200)
    assert (report["width"], report["height"]) == (64, 48)
    with Image.open(tmp_path / "out.png") as made:
        assert made.size == (64, 48)
        assert_upright_quarters(made)


@pytest.mark.parametrize(
    "exif",
    [
        b"",
        b"Exif\0\0",
        b"Exif\0\0garbage garbage garbage",
        b"Exif\0\0II*\0\xff\xff\xff\xff",
        b"Exif\0\0MM\0*\0\0\0\x08\0\xff\1\x12",
    ],
)
@pytest.mark.parametrize("suffix", ["jpg", "png", "webp"])
def test_malformed_exif_does_not_stop_a_thumbnail(tmp_path: Path, exif: bytes, suffix: str) -> None:
    assert_upright_quarters(result(saved(tmp_path / f"in.{suffix}", quarters(), exif=exif), tmp_path / "out.png"))


@pytest.mark.parametrize(
    ("kind", "count", "value"),
    [
        (3, 1, b"\0\0"),
        (3, 1, b"\t\0"),
        (3, 1, b"\xff\xff"),
        (2, 4, b"six\0"),
        (11, 1, b"\0\0\xd0\x40"),
    ],
    ids=["0", "9", "65535", "text", "6.5"],
)
def test_an_impossible_orientation_counts_as_upright(tmp_path: Path, kind: int, count: int, value: bytes) -> None:
    exif = b"Exif\0\0II*\0\x08\0\0\0\1\0" + struct.pack("<HHI", 0x0112, kind, count) + value.ljust(8, b"\0")
    report = make_thumbnail(saved(tmp_path / "in.jpg", quarters(), exif=exif), str(tmp_path / "out.png"))
    assert (report["source_width"], report["source_height"]) == (1600, 1200)
    with Image.open(tmp_path / "out.png") as made:
        assert_upright_quarters(made)


@pytest.mark.parametrize("side", [1025, 1600, 2047])
@pytest.mark.parametrize("suffix", ["jpg", "png"])
def test_shrinking_fast_looks_like_shrinking_with_care(tmp_path: Path, side: int, suffix: str) -> None:
    coarse = Image.frombytes("RGB", (256, 256), random.Random(4).randbytes(256 * 256 * 3))
    picture = coarse.resize((side, side - 300), Image.Resampling.BICUBIC)
    source = saved(tmp_path / f"in.{suffix}", picture, **({"quality": 98} if suffix == "jpg" else {}))
    made = result(source, tmp_path / "out.png", 120)
    difference = ImageChops.difference(made, picture.resize(made.size, Image.Resampling.LANCZOS))
    assert max(ImageStat.Stat(difference).rms) < 4


# Colours


def transparent_images() -> dict[str, tuple[Image.Image, dict[str, Any]]]:
    """Left half red or white and solid, right half transparent."""
    mask = Image.new("L", (80, 40), 255)
    mask.paste(0, (40, 0, 80, 40))
    rgba = Image.new("RGBA", (80, 40), RED)
    rgba.putalpha(mask)
    grey_alpha = Image.merge("LA", (Image.new("L", (80, 40), 255), mask))
    palette = Image.new("P", (80, 40), 0)
    palette.putpalette([*RED, *GREEN, *BLUE])
    palette.paste(1, (40, 0, 80, 40))
    key = Image.new("RGB", (80, 40), RED)
    key.paste(GREEN, (40, 0, 80, 40))
    grey = Image.new("L", (80, 40), 255)
    grey.paste(7, (40, 0, 80, 40))
    bits = Image.new("1", (80, 40), 1)
    bits.paste(0, (40, 0, 80, 40))
    return {
        "RGBA": (rgba, {}),
        "LA": (grey_alpha, {}),
        "P with one transparent entry": (palette, {"transparency": 1}),
        "P with an alpha for each entry": (palette, {"transparency": b"\xff\0\xff"}),
        "RGB with a transparent colour": (key, {"transparency": GREEN}),
        "L with a transparent grey": (grey, {"transparency": 7}),
        "1 with transparent black": (bits, {"transparency": 0}),
    }


@pytest.mark.parametrize("name", transparent_images())
@pytest.mark.parametrize("suffix", ["jpg", "gif"])
def test_transparency_shows_the_chosen_background(tmp_path: Path, name: str, suffix: str) -> None:
    image, options = transparent_images()[name]
    solid = RED if "RGB" in name or "P" in name else WHITE
    source = saved(tmp_path / "in.png", image, **options)
    for background, wanted in (("white", WHITE), ("#0000ff", BLUE)):
        made = result(source, tmp_path / f"out.{suffix}", background=background)
        assert near(colour(made, 0.1), solid, 12)
        assert near(colour(made, 0.9), wanted, 12)


@pytest.mark.parametrize("name", transparent_images())
@pytest.mark.parametrize("suffix", ["png", "webp"])
def test_transparency_is_kept_where_the_format_has_it(tmp_path: Path, name: str, suffix: str) -> None:
    image, options = transparent_images()[name]
    made = result(saved(tmp_path / "in.png", image, **options), tmp_path / f"out.{suffix}")
    assert colour(made, 0.1)[3] == 255
    assert colour(made, 0.9)[3] == 0


def test_a_palette_with_an_alpha_channel_is_handled(tmp_path: Path) -> None:
    index = Image.new("P", (80, 40), 0)
    index.putpalette(RED)
    mask = transparent_images()["RGBA"][0].getchannel("A")
    source = saved(tmp_path / "in.tif", Image.merge("PA", (index, mask)))
    with Image.open(source) as written:
        if not near(colour(written.convert("RGBA"), 0.1), (*RED, 255)):
            pytest.skip("this Pillow loses the palette on writing")
    made = result(source, tmp_path / "out.jpg", background="blue")
    assert near(colour(made, 0.1), RED, 12) and near(colour(made, 0.9), BLUE, 12)


def test_the_colour_of_invisible_pixels_does_not_bleed_into_the_edge(tmp_path: Path) -> None:
    picture = Image.new("RGBA", (999, 999), (*GREEN, 0))
    picture.paste((*RED, 255), (0, 0, 480, 999))
    made = result(saved(tmp_path / "in.png", picture), tmp_path / "out.png", 10)
    assert all(colour(made, x / 9)[1] < 8 for x in range(10) if colour(made, x / 9)[3])


def test_an_alpha_channel_that_hides_nothing_is_dropped(tmp_path: Path) -> None:
    source = saved(tmp_path / "in.png", quarters().convert("RGBA"))
    assert result(source, tmp_path / "out.png").mode == "RGB"


@pytest.mark.parametrize("suffix", ["jpg", "tif"])
def test_cmyk_keeps_its_colours(tmp_path: Path, suffix: str) -> None:
    options = {"quality": 95} if suffix == "jpg" else {}
    source = saved(tmp_path / f"in.{suffix}", quarters().convert("CMYK"), **options)
    assert_upright_quarters(result(source, tmp_path / "out.jpg"))


def profile(swap: bool = True, space: bytes = b"RGB ") -> bytes:
    """The sRGB profile; with its red and blue swapped, an image's red means blue."""
    data = bytearray(ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes())
    data[16:20] = space
    red, blue = data.index(b"rXYZ") + 4, data.index(b"bXYZ") + 4
    if swap:
        data[red : red + 8], data[blue : blue + 8] = data[blue : blue + 8], data[red : red + 8]
    return bytes(data)


@pytest.mark.parametrize("suffix", ["jpg", "png", "webp", "tif"])
def test_an_embedded_colour_profile_is_converted_to_srgb(tmp_path: Path, suffix: str) -> None:
    source = saved(tmp_path / f"in.{suffix}", Image.new("RGB", (200, 100), RED), icc_profile=profile())
    made = result(source, tmp_path / "out.png")
    assert near(colour(made), BLUE, 12)
    assert "icc_profile" not in made.info


def test_a_profile_is_applied_under_transparency_and_to_palettes(tmp_path: Path) -> None:
    see_through = Image.new("RGBA", (200, 100), (*RED, 100))
    palette = Image.new("RGB", (200, 100), RED).quantize(2)
    for name, image, wanted in (("rgba", see_through, (*BLUE, 100)), ("p", palette, BLUE)):
        source = saved(tmp_path / f"{name}.png", image, icc_profile=profile())
        assert near(colour(result(source, tmp_path / "out.png")), wanted, 12)


@pytest.mark.parametrize(
    "icc", [b"garbage", profile()[:200], profile(space=b"CMYK"), profile(space=b"GRAY"), bytes(4000)]
)
@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
def test_a_wrong_profile_does_not_stop_a_thumbnail(tmp_path: Path, icc: bytes, mode: str) -> None:
    source = saved(tmp_path / "in.jpg", Image.new("RGB", (200, 100), WHITE).convert(mode), icc_profile=icc)
    assert near(colour(result(source, tmp_path / "out.png")), WHITE)


def test_a_grey_image_with_a_colour_profile_stays_as_it_is(tmp_path: Path) -> None:
    source = saved(tmp_path / "in.jpg", Image.new("L", (200, 100), 128), icc_profile=profile())
    made = result(source, tmp_path / "out.png")
    assert made.mode == "L" and near(colour(made), GREY, 2)


def test_a_grey_profile_is_applied_and_the_image_stays_grey(tmp_path: Path) -> None:
    data = bytearray(profile(swap=False, space=b"GRAY").replace(b"rTRC", b"kTRC", 1))
    entry = data.index(b"kTRC")
    curve = int.from_bytes(data[entry + 4 : entry + 8], "big")
    assert data[curve : curve + 4] == b"para"
    data[curve + 8 : curve + 16] = struct.pack(">HHI", 0, 0, 1 << 16)  # a gamma of 1, so twice as light in sRGB
    source = saved(tmp_path / "in.jpg", Image.new("L", (200, 100), 128), icc_profile=bytes(data))
    made = result(source, tmp_path / "out.png")
    assert made.mode == "L" and near(colour(made), (188, 188, 188), 2)


DEEP = {
    "16-bit PNG": ("png", Image.new("I;16", (200, 100), 32768)),
    "16-bit TIFF": ("tif", Image.new("I;16", (200, 100), 32768)),
    "16-bit big-endian TIFF": ("tif", Image.new("I;16B", (200, 100), 32768)),
    "16-bit PGM": ("pgm", Image.new("I;16", (200, 100), 32768)),
    "32-bit TIFF of 16-bit values": ("tif", Image.new("I", (200, 100), 32768)),
    "32-bit TIFF of 8-bit values": ("tif", Image.new("I", (200, 100), 128)),
    "float TIFF up to 1": ("tif", Image.new("F", (200, 100), 0.5)),
    "float TIFF up to 255": ("tif", Image.new("F", (200, 100), 128)),
}


@pytest.mark.parametrize("name", DEEP)
def test_a_mid_grey_of_many_bits_is_mid_grey(tmp_path: Path, name: str) -> None:
    suffix, image = DEEP[name]
    made = result(saved(tmp_path / f"in.{suffix}", image), tmp_path / "out.png")
    assert made.mode == "L" and near(colour(made), GREY, 1)


@pytest.mark.parametrize(
    ("mode", "low", "high"), [("I", -1000, 1000), ("I", 0, 2_000_000), ("F", -1.0, 1.0), ("F", 0.0, 1e9)]
)
def test_numbers_without_a_usual_range_are_stretched_over_it(
    tmp_path: Path, mode: str, low: float, high: float
) -> None:
    image = Image.new(mode, (300, 100), low)
    image.paste((low + high) / 2 if mode == "F" else int(low + high) // 2, (100, 0, 200, 100))
    image.paste(high, (200, 0, 300, 100))
    made = result(saved(tmp_path / "in.tif", image), tmp_path / "out.png", 300)
    assert [colour(made, x)[0] for x in (0.1, 0.5, 0.9)] == [0, 128, 255]


def test_floats_that_are_no_numbers_do_not_stop_a_thumbnail(tmp_path: Path) -> None:
    image = Image.new("F", (300, 100), 0.5)
    image.paste(float("inf"), (0, 0, 50, 100))
    image.paste(float("nan"), (250, 0, 300, 100))
    assert near(colour(result(saved(tmp_path / "in.tif", image), tmp_path / "out.png", 300)), GREY, 1)


@pytest.mark.parametrize(
    ("more", "pixels", "wanted"),
    [
        ({258: 16, 262: 0}, struct.pack("<H", 6553) * 200, 230),
        ({258: 16, 262: 1, 339: 2}, struct.pack("<h", 16384) * 200, 128),
        ({258: 12, 262: 1}, b"\x80\x08\x00" * 100, 128),
    ],
    ids=["white is zero", "signed", "12 bits"],
)
def test_tiffs_of_odd_depths_are_scaled(tmp_path: Path, more: dict[int, int], pixels: bytes, wanted: int) -> None:
    tags = {256: 20, 257: 10, 259: 1, 273: 512, 277: 1, 278: 10, 279: len(pixels), **more}
    (tmp_path / "in.tif").write_bytes(tiff_bytes(tags, pixels))
    assert near(colour(result(str(tmp_path / "in.tif"), tmp_path / "out.png")), (wanted,) * 3, 1)


def test_grey_multiplied_by_its_alpha_is_restored(tmp_path: Path) -> None:
    tags = {256: 20, 257: 10, 258: 8, 259: 1, 262: 1, 273: 512, 277: 2, 278: 10, 279: 400, 338: 1}
    (tmp_path / "in.tif").write_bytes(tiff_bytes(tags, b"\x40\x80" * 200))
    try:
        Image.open(tmp_path / "in.tif").close()
    except UnidentifiedImageError:
        pytest.skip("this Pillow cannot read such a TIFF")
    assert near(colour(result(str(tmp_path / "in.tif"), tmp_path / "out.png")), (128, 128, 128, 128), 1)


def test_a_pgm_of_few_greys_is_scaled_by_its_own_maximum(tmp_path: Path) -> None:
    (tmp_path / "in.pgm").write_bytes(b"P5 20 10 1000\n" + struct.pack(">H", 500) * 200)
    assert near(colour(result(str(tmp_path / "in.pgm"), tmp_path / "out.png")), GREY, 1)


def test_16_bit_colours_are_scaled(tmp_path: Path) -> None:
    row = b"\0" + struct.pack(">HHH", 65535, 32768, 0) * 20
    (tmp_path / "in.png").write_bytes(png_bytes(20, 10, 16, 2, row * 10))
    assert near(colour(result(str(tmp_path / "in.png"), tmp_path / "out.png")), (255, 128, 0), 1)


def test_black_and_white_shrinks_to_greys(tmp_path: Path) -> None:
    checkers = Image.frombytes(
        "1", (640, 640), bytes((0b10101010, 0b01010101)[y % 2] for y in range(640) for _ in range(80))
    )
    assert near(colour(result(saved(tmp_path / "in.png", checkers), tmp_path / "out.png")), GREY, 2)


def test_palette_colours_are_mixed_not_picked(tmp_path: Path) -> None:
    stripes = Image.frombytes("P", (640, 640), bytes((0, 1)) * 320 * 640)
    stripes.putpalette([*RED, *BLUE])
    assert near(colour(result(saved(tmp_path / "in.png", stripes), tmp_path / "out.png")), (128, 0, 128), 4)


@pytest.mark.parametrize(("mode", "value"), [("LAB", (137, 208, 195)), ("YCbCr", (76, 85, 255))])
def test_lab_and_ycbcr_are_converted(tmp_path: Path, mode: str, value: Pixel) -> None:
    options = {"compression": "jpeg"} if mode == "YCbCr" else {}
    source = saved(tmp_path / "in.tif", Image.new(mode, (200, 100), value), **options)
    assert near(colour(result(source, tmp_path / "out.png")), RED, 12)


@pytest.mark.parametrize("suffix", ["gif", "webp", "png", "tif", "mpo"])
def test_of_several_pictures_the_first_is_taken(tmp_path: Path, suffix: str) -> None:
    more = [Image.new("RGB", (1600, 1200), BLUE), Image.new("RGB", (1600, 1200), RED)]
    source = saved(tmp_path / f"in.{suffix}", quarters(), save_all=True, append_images=more)
    assert_upright_quarters(result(source, tmp_path / "out.png"))


@pytest.mark.parametrize("suffix", ["bmp", "ico", "icns", "jp2", "tga", "ppm", "avif"])
def test_less_usual_formats_are_read(tmp_path: Path, suffix: str) -> None:
    if suffix == "avif" and ".avif" not in Image.registered_extensions():
        pytest.skip("this Pillow has no AVIF")
    source = saved(tmp_path / f"in.{suffix}", quarters((256, 256)))
    assert_upright_quarters(result(source, tmp_path / "out.png"))


def test_an_icon_of_another_size_than_it_says_keeps_its_shape(tmp_path: Path) -> None:
    file = io.BytesIO()
    quarters((200, 100)).convert("RGBA").save(file, "PNG")
    entry = struct.pack("<BBBBHHII", 64, 64, 0, 0, 1, 32, len(file.getvalue()), 22)
    (tmp_path / "in.ico").write_bytes(struct.pack("<HHH", 0, 1, 1) + entry + file.getvalue())
    made = result(str(tmp_path / "in.ico"), tmp_path / "out.png")
    assert made.size == (64, 32)
    assert_upright_quarters(made)


# Limits


def test_a_declared_giant_is_refused_from_its_header(tmp_path: Path) -> None:
    (tmp_path / "in.png").write_bytes(png_bytes(100_000, 100_000, 8, 0, b""))
    reason = refusal(tmp_path / "in.png", tmp_path / "out.jpg")
    assert "in.png" in reason and "too large" in reason


@pytest.mark.parametrize("side", [65_500, 14_500])
def test_a_jpeg_that_declares_too_much_is_refused_from_its_header(tmp_path: Path, side: int) -> None:
    file = io.BytesIO()
    Image.new("L", (16, 16)).save(file, "JPEG")
    data = bytearray(file.getvalue())
    frame = data.index(b"\xff\xc0")
    data[frame + 5 : frame + 9] = struct.pack(">HH", side, side)
    (tmp_path / "in.jpg").write_bytes(data)
    assert "too large" in refusal(tmp_path / "in.jpg", tmp_path / "out.jpg")


def test_a_tiny_file_of_very_many_pixels_is_refused(tmp_path: Path) -> None:
    (tmp_path / "in.png").write_bytes(png_bytes(13_000, 13_000, 1, 0, bytes(1626) * 13_000))
    assert "bomb: 13000 x 13000 pixels" in refusal(tmp_path / "in.png", tmp_path / "out.jpg")


@pytest.mark.parametrize(("limit", "fits"), [(9999, True), (9998, False), (10_000, True), (1, False)])
def test_the_limit_counts_exactly(tmp_path: Path, limit: int, fits: bool) -> None:
    source = saved(tmp_path / "in.png", Image.new("L", (101, 99)))
    if fits:
        make_thumbnail(source, str(tmp_path / "out.jpg"), max_pixels=limit)
    else:
        refusal(source, tmp_path / "out.jpg", max_pixels=limit)


@pytest.mark.parametrize(("suffix", "share"), [("webp", 4), ("jp2", 5)])
def test_formats_that_need_more_memory_have_a_lower_limit(tmp_path: Path, suffix: str, share: int) -> None:
    source = saved(tmp_path / f"in.{suffix}", Image.new("RGB", (100, 100)))
    assert "more than the" in refusal(source, tmp_path / "out.jpg", max_pixels=share * 10_000 - 1)
    make_thumbnail(source, str(tmp_path / "out.jpg"), max_pixels=share * 10_000)


@pytest.mark.parametrize("side", [60_000, 5_000])
def test_a_giant_hidden_in_an_icon_is_refused(tmp_path: Path, side: int) -> None:
    inner = png_bytes(side, side, 8, 6, b"")
    entry = struct.pack("<BBBBHHII", 64, 64, 0, 0, 1, 32, len(inner), 22)
    (tmp_path / "in.ico").write_bytes(struct.pack("<HHH", 0, 1, 1) + entry + inner)
    body = b"ic08" + struct.pack(">I", len(inner) + 8) + inner
    (tmp_path / "in.icns").write_bytes(b"icns" + struct.pack(">I", len(body) + 8) + body)
    for name in ("in.ico", "in.icns"):
        assert "too large" in refusal(tmp_path / name, tmp_path / "out.jpg")


@pytest.mark.parametrize("compression", [1, 5, 7, 8])
def test_a_tiff_of_giant_tiles_is_refused(tmp_path: Path, compression: int) -> None:
    tags = {256: 100, 257: 100, 258: 8, 259: compression, 262: 1, 277: 1}
    tags |= {322: 65_504, 323: 65_504, 324: 512, 325: 1000}
    (tmp_path / "in.tif").write_bytes(tiff_bytes(tags, bytes(1000)))
    assert "in.tif" in refusal(tmp_path / "in.tif", tmp_path / "out.jpg")


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
@pytest.mark.parametrize(("mode", "most"), [("P", 2), ("1", 2), ("RGBA", 5.5)])
def test_an_image_is_never_converted_whole(tmp_path: Path, mode: str, most: float) -> None:
    side, line = 4000, random.Random(1).randbytes(16_000)
    image = Image.frombytes(mode, (side, side), line[: {"P": 4000, "1": 500, "RGBA": 16_000}[mode]] * side)
    if mode == "P":
        image.putpalette([value // 3 for value in range(768)])
    source = saved(tmp_path / "in.png", image, compress_level=1, **({"transparency": 3} if mode == "P" else {}))
    peak = "int(next(line for line in open('/proc/self/status') if line.startswith('VmHWM')).split()[1]) * 1024"
    done = run(
        f"import sys; from PIL import Image; Image.init(); import handlers.thumbnail as h; before = {peak};"
        f"h.make_thumbnail(sys.argv[1], sys.argv[1] + '.jpg'); print({peak} - before)",
        source,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) / side**2 < most  # bytes a pixel, where 1, 1 and 4 are needed to decode it


# Pillow's own settings


@pytest.mark.parametrize("works", [True, False])
def test_pillows_settings_are_left_as_another_handler_made_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, works: bool
) -> None:
    source = saved(tmp_path / "in.jpg", quarters())
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10)
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    filters = list(warnings.filters)
    if works:
        make_thumbnail(source, str(tmp_path / "out.jpg"))
    else:
        os.truncate(source, 2000)  # which must not pass because that handler lets it
        assert "truncated" in refusal(source, tmp_path / "out.jpg")
    assert Image.MAX_IMAGE_PIXELS == 10
    assert ImageFile.LOAD_TRUNCATED_IMAGES is True
    assert list(warnings.filters) == filters


def test_the_handler_does_not_import_pillow_before_it_runs() -> None:
    done = run("import handlers.thumbnail, sys; print('PIL' in sys.modules)")
    assert done.stdout == "False\n", done.stderr


# What can never work


@pytest.mark.parametrize("part", [0.5, 0.99])
@pytest.mark.parametrize("progressive", [False, True])
def test_a_truncated_jpeg_is_refused(tmp_path: Path, part: float, progressive: bool) -> None:
    noise = Image.frombytes("RGB", (800, 600), random.Random(2).randbytes(800 * 600 * 3))
    source = Path(saved(tmp_path / "in.jpg", noise, progressive=progressive))
    os.truncate(source, int(source.stat().st_size * part))
    reason = refusal(source, tmp_path / "out.jpg")
    assert "in.jpg" in reason and "truncated" in reason


@pytest.mark.parametrize("suffix", ["png", "gif", "webp", "bmp", "tif"])
def test_half_an_image_of_another_kind_is_refused(tmp_path: Path, suffix: str) -> None:
    noise = Image.frombytes("RGB", (300, 200), random.Random(2).randbytes(300 * 200 * 3))
    source = Path(saved(tmp_path / f"in.{suffix}", noise))
    os.truncate(source, source.stat().st_size // 2)
    assert f"in.{suffix}" in refusal(source, tmp_path / "out.jpg")


def test_what_is_no_image_file_is_refused_with_its_name(tmp_path: Path) -> None:
    (tmp_path / "text.jpg").write_text("hello")
    (tmp_path / "void.jpg").touch()
    (tmp_path / "folder.jpg").mkdir()
    os.mkfifo(tmp_path / "pipe.jpg")
    (tmp_path / "loop.jpg").symlink_to("loop.jpg")
    for name, why in (
        ("text.jpg", "not an image"),
        ("void.jpg", "empty"),
        ("folder.jpg", "a directory"),
        ("pipe.jpg", "not a regular file"),
        ("loop.jpg", "cannot be a file"),
        ("missing.jpg", "does not exist"),
        ("text.jpg/below.jpg", "cannot be a file"),
        ("nul\0.jpg", "cannot be the name"),
        ("x" * 300, "cannot be a file"),
    ):
        reason = refusal(tmp_path / name, tmp_path / "out" / "out.jpg")
        assert why in reason and repr(name)[1:-1] in reason
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("source", [0, True, None, ["in.jpg"], b"in.jpg"])
def test_a_source_that_is_no_text_is_refused(tmp_path: Path, source: Any) -> None:
    with pytest.raises(Discard, match="cannot be the name of a file"):
        thumbnail(source, str(tmp_path / "out.jpg"))


def test_an_image_that_does_not_fit_into_memory_is_refused(tmp_path: Path) -> None:
    source = saved(tmp_path / "in.png", Image.new("RGB", (8000, 8000)), compress_level=1)
    done = run(
        "import resource, sys; from PIL import Image; from handlers.thumbnail import Refused, make_thumbnail\n"
        "resource.setrlimit(resource.RLIMIT_AS, (200 << 20, 200 << 20))\n"
        "try: make_thumbnail(*sys.argv[1:])\n"
        "except Refused as reason: print(reason)",
        source,
        str(tmp_path / "out.jpg"),
    )
    assert "in.png' needs more memory" in done.stdout, done.stderr


def test_without_pillow_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = saved(tmp_path / "in.jpg", quarters())
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(RuntimeError, match=r"pip install 'jobpool\[thumbnails\]'"):
        thumbnail(source, str(tmp_path / "out.jpg"))


def test_postscript_is_not_run(tmp_path: Path) -> None:
    Image.new("RGB", (10, 10)).save(tmp_path / "in.eps")
    (tmp_path / "in.eps").rename(tmp_path / "in.jpg")
    assert "not an image" in refusal(tmp_path / "in.jpg", tmp_path / "out.jpg")


@pytest.mark.parametrize("suffix", ["jpg", "png", "gif", "tif", "webp", "bmp", "ico", "pcx", "ppm"])
def test_damaged_bytes_give_a_thumbnail_or_a_reason(tmp_path: Path, suffix: str) -> None:
    good = Path(saved(tmp_path / f"good.{suffix}", quarters((64, 64)))).read_bytes()
    chance = random.Random(suffix)
    for _ in range(60):
        data = bytearray(good)
        for _ in range(chance.choice((1, 2, 8))):
            data[chance.randrange(min(len(data), chance.choice((100, 100_000))))] = chance.choice((0, 255, 128, 7))
        (tmp_path / "in").write_bytes(data)
        try:
            thumbnail(str(tmp_path / "in"), str(tmp_path / "out.jpg"))
        except Discard as reason:
            assert "in'" in str(reason)


@pytest.mark.parametrize(
    "error",
    [
        SyntaxError,
        ValueError,
        struct.error,
        OverflowError,
        IndexError,
        KeyError,
        TypeError,
        EOFError,
        MemoryError,
        zlib.error,
        ZeroDivisionError,
        AttributeError,
        RecursionError,
        AssertionError,
        SystemError,
        NotImplementedError,
        UnicodeError,
    ],
)
def test_whatever_pillow_raises_for_a_wrong_image_is_a_refusal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    def fails(*_: object) -> None:
        raise error("odd bytes")

    monkeypatch.setattr(handlers.thumbnail, "thumbnail_of", fails)
    assert "in.jpg" in refusal(saved(tmp_path / "in.jpg", quarters()), tmp_path / "out.jpg")


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), SystemExit(3), OSError(errno.EIO, "I/O error"), OSError(errno.EMFILE, "")]
)
def test_what_is_not_the_images_fault_is_raised_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    def fails(*_: object) -> None:
        raise error

    monkeypatch.setattr(handlers.thumbnail, "thumbnail_of", fails)
    with pytest.raises(type(error)) as caught:
        thumbnail(saved(tmp_path / "in.jpg", quarters()), str(tmp_path / "out.jpg"))
    assert caught.value is error


@pytest.mark.parametrize(
    "options",
    [
        {"size": 0},
        {"size": -1},
        {"size": "256"},
        {"size": True},
        {"size": 2.5},
        {"size": 99_999},
        {"size": None},
        {"quality": 0},
        {"quality": 101},
        {"quality": "good"},
        {"max_pixels": 0},
        {"background": "nonsense"},
        {"background": None},
        {"background": 7},
    ],
    ids=str,
)
def test_an_option_that_can_never_work_is_refused_by_name(tmp_path: Path, options: dict[str, Any]) -> None:
    assert next(iter(options)) in refusal(saved(tmp_path / "in.jpg", quarters()), tmp_path / "out.jpg", **options)


@pytest.mark.parametrize("name", ["out.bmp", "out", "out.jpg.exe", ".jpg"])
def test_an_unknown_extension_is_refused_with_those_that_are_known(tmp_path: Path, name: str) -> None:
    reason = refusal(saved(tmp_path / "in.jpg", quarters()), tmp_path / name)
    assert all(known in reason for known in (name, ".jpg", ".jpeg", ".png", ".webp", ".gif"))


@pytest.mark.parametrize("link", [os.link, os.symlink, None])
def test_a_source_is_never_its_own_dest(tmp_path: Path, link: Any) -> None:
    source = Path(saved(tmp_path / "in.jpg", quarters()))
    dest = tmp_path / "out.jpg" if link else source
    if link:
        link(source, dest)
    before = source.read_bytes()
    with pytest.raises(Discard, match="same file"):
        thumbnail(str(source), str(dest))
    assert source.read_bytes() == before


def test_a_dest_that_is_a_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out.jpg").mkdir()
    with pytest.raises(Discard, match="it is a directory"):
        thumbnail(saved(tmp_path / "in.jpg", quarters()), str(tmp_path / "out.jpg"))


# The file that is written


@pytest.mark.parametrize(
    ("name", "kind"),
    [("a.jpg", "JPEG"), ("a.JPEG", "JPEG"), ("a.png", "PNG"), ("a.webp", "WEBP"), ("a.gif", "GIF")],
)
@pytest.mark.parametrize("mode", ["RGB", "RGBA", "L", "LA", "CMYK", "I", "1"])
def test_the_extension_decides_the_format(tmp_path: Path, name: str, kind: str, mode: str) -> None:
    source = saved(tmp_path / "in.tif", quarters((200, 100)).convert(mode))
    report = thumbnail(source, str(tmp_path / name), 50)
    with Image.open(tmp_path / name) as made:
        assert (made.format, made.size) == (kind, (50, 25))
    assert json.loads(json.dumps(report)) == {
        "dest": str(tmp_path / name),
        "width": 50,
        "height": 25,
        "source_width": 200,
        "source_height": 100,
        "format": kind,
        "bytes": (tmp_path / name).stat().st_size,
    }


def test_a_jpeg_is_progressive_and_quality_counts(tmp_path: Path) -> None:
    source = saved(tmp_path / "in.png", Image.effect_noise((300, 300), 50))
    assert result(source, tmp_path / "good.jpg", 256, quality=95).info.get("progressive")
    make_thumbnail(source, str(tmp_path / "poor.jpg"), quality=20)
    assert (tmp_path / "poor.jpg").stat().st_size * 2 < (tmp_path / "good.jpg").stat().st_size


@pytest.mark.parametrize("suffix", ["jpg", "png", "webp", "gif"])
def test_no_metadata_is_copied(tmp_path: Path, suffix: str) -> None:
    exif = Image.Exif()
    exif[0x010F] = "SecretCamera"
    exif.get_ifd(0x8825)[29] = "SecretDate"
    extra: dict[str, Any] = {"comment": b"SecretComment"} if suffix in ("jpg", "gif") else {}
    if suffix != "gif":
        extra |= {"exif": exif, "icc_profile": profile(swap=False)}
    if suffix in ("jpg", "webp"):
        extra["xmp"] = b"<x:xmpmeta>SecretPlace</x:xmpmeta>"
    source = saved(tmp_path / f"in.{suffix}", quarters(), **extra)
    assert b"Secret" in Path(source).read_bytes()
    for kind in ("jpg", "png", "webp", "gif"):
        made = result(source, tmp_path / f"out.{kind}")
        assert b"Secret" not in (tmp_path / f"out.{kind}").read_bytes()
        assert not {"exif", "xmp", "comment", "icc_profile"} & made.info.keys()


def test_missing_folders_are_made_and_relative_paths_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved(tmp_path / "in.jpg", quarters())
    monkeypatch.chdir(tmp_path)
    make_thumbnail("in.jpg", "a/b/out.jpg")
    make_thumbnail("in.jpg", "out.jpg")
    assert (tmp_path / "a/b/out.jpg").read_bytes() == (tmp_path / "out.jpg").read_bytes()


def test_permissions_follow_the_umask(tmp_path: Path) -> None:
    former = os.umask(0o027)
    try:
        make_thumbnail(saved(tmp_path / "in.jpg", quarters()), str(tmp_path / "out.jpg"))
    finally:
        os.umask(former)
    assert stat.S_IMODE((tmp_path / "out.jpg").stat().st_mode) == 0o640


def test_the_longest_name_works(tmp_path: Path) -> None:
    name = "é" * 125 + ".jpg"
    make_thumbnail(saved(tmp_path / "in.jpg", quarters()), str(tmp_path / name))
    assert sorted(os.listdir(tmp_path)) == sorted(["in.jpg", name])


def test_a_failed_write_is_for_a_retry_and_leaves_the_old_file(tmp_path: Path) -> None:
    source = saved(tmp_path / "in.png", quarters())
    (tmp_path / "out.png").write_bytes(b"old")
    done = run(
        "import resource, sys; from handlers.thumbnail import thumbnail\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (50, 50))\n"
        "try: thumbnail(*sys.argv[1:])\n"
        "except OSError as error: print(error.errno)",
        source,
        str(tmp_path / "out.png"),
    )
    assert done.stdout == f"{errno.EFBIG}\n", done.stderr
    assert (tmp_path / "out.png").read_bytes() == b"old"
    assert sorted(os.listdir(tmp_path)) == ["in.png", "out.png"]


def test_what_a_killed_worker_left_is_taken_over_by_the_next_attempt(tmp_path: Path) -> None:
    source = saved(tmp_path / "in.png", quarters())
    (tmp_path / "out.png").write_bytes(b"old")
    done = run(
        "import os, signal, sys; from handlers.thumbnail import thumbnail\n"
        "os.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)\n"
        "thumbnail(*sys.argv[1:])",
        source,
        str(tmp_path / "out.png"),
    )
    assert done.returncode == -9
    assert (tmp_path / "out.png").read_bytes() == b"old"
    (left,) = (name for name in os.listdir(tmp_path) if name not in ("in.png", "out.png"))
    assert left.startswith(".out.png") and left.endswith(".part")
    with open(tmp_path / left, "ab") as file:
        file.write(b"more than the next attempt will write" * 1000)
    report = make_thumbnail(source, str(tmp_path / "out.png"))
    assert (tmp_path / "out.png").stat().st_size == report["bytes"]
    assert sorted(os.listdir(tmp_path)) == ["in.png", "out.png"]


def test_two_jobs_for_one_dest_never_mix(tmp_path: Path) -> None:
    noise = Image.frombytes("RGB", (300, 300), random.Random(3).randbytes(270_000))
    sources = [saved(tmp_path / "a.png", noise), saved(tmp_path / "b.png", quarters((300, 300)))]
    whole = set()
    for source in sources:
        make_thumbnail(source, str(tmp_path / "out.png"))
        whole.add((tmp_path / "out.png").read_bytes())
    code = (
        "import sys; from handlers.thumbnail import make_thumbnail\nfor _ in range(100): make_thumbnail(*sys.argv[1:])"
    )
    root = str(Path(handlers.thumbnail.__file__).parent.parent)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([root, os.environ.get("PYTHONPATH", "")])}
    writers = [
        subprocess.Popen([sys.executable, "-c", code, source, str(tmp_path / "out.png")], env=env) for source in sources
    ]
    while any(writer.poll() is None for writer in writers):
        assert (tmp_path / "out.png").read_bytes() in whole
    assert [writer.returncode for writer in writers] == [0, 0]
    assert sorted(os.listdir(tmp_path)) == ["a.png", "b.png", "out.png"]


def test_a_symbolic_link_in_the_place_of_the_hidden_file_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "precious").write_bytes(b"precious")
    (tmp_path / ".out.jpg.part").symlink_to("precious")
    with pytest.raises(OSError):
        thumbnail(saved(tmp_path / "in.jpg", quarters()), str(tmp_path / "out.jpg"))
    assert (tmp_path / "precious").read_bytes() == b"precious"


def test_two_thousand_tiffs_of_many_pages_leak_no_descriptor(tmp_path: Path) -> None:
    pages = [Image.new("RGB", (30, 20), each) for each in (RED, GREEN, BLUE)]
    saved(tmp_path / "raw.tif", pages[0], save_all=True, append_images=pages[1:])
    saved(tmp_path / "lzw.tif", pages[0], save_all=True, append_images=pages[1:], compression="tiff_lzw")
    good = (tmp_path / "lzw.tif").read_bytes()
    (tmp_path / "bad.tif").write_bytes(good[:8] + b"\xff" * 30 + good[38:])
    done = run(
        "import os, resource, sys; from handlers.thumbnail import Refused, make_thumbnail\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))\n"
        "for number in range(2000):\n"
        "    try: make_thumbnail(sys.argv[1 + number % 3], sys.argv[4], 16)\n"
        "    except Refused: assert number % 3 == 2\n"
        "    else: assert number % 3 != 2\n"
        "print(len(os.listdir('/dev/fd')) < 16)",
        *(str(tmp_path / name) for name in ("raw.tif", "lzw.tif", "bad.tif")),
        str(tmp_path / "out.png"),
    )
    assert done.stdout == "True\n", done.stderr[-2000:]


def test_refused_is_what_the_ordinary_function_raises(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="does not exist"):
        make_thumbnail(str(tmp_path / "in.jpg"), str(tmp_path / "out.jpg"))
