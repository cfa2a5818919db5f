"""Measures our thumbnails against decoding everything and resizing it; `python -m benchmarks.photos` runs it alone.

Every single measurement is a fresh process, ours and the naive one in turn. Speed is the ratio of medians.
Memory is the peak beyond what the process held before, with Pillow loaded and one tiny image done.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

MEGAPIXELS = (10, 16, 24)
SIZE = 256  # pixels, the longer side of the thumbnails
ROOT = Path(__file__).resolve().parent.parent.parent


def main() -> int:
    """Print a line for each photo size and one for the worst; with --json, what `measure` returns."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split(":")[0])
    parser.add_argument("--repeats", type=int, default=5, metavar="N", help="processes of each kind (default: 5)")
    parser.add_argument("--progressive", action="store_true", help="progressive JPEGs, which take more memory")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--step", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.step:
        _step(*options.step)
        return 0
    result = measure(repeats=options.repeats, progressive=options.progressive)
    if options.json:
        print(json.dumps(result, indent=2))
        return 0
    for row in result["photos"]:
        ours, naive = row["ours"], row["naive"]
        print(
            f"{row['megapixels']:3} MP"
            f"  {ours['ms']:6.1f} ms against {naive['ms']:6.1f}: {row['speed']:5.2f} x the speed;"
            f"  +{ours['mb']:5.1f} MB against +{naive['mb']:5.1f}: {row['memory']:.3f} x the memory"
            f"  (whole process {ours['peak_mb']:.0f} against {naive['peak_mb']:.0f} MB)"
        )
    print(f"worst: {result['speed']:.2f} x the speed, {result['memory']:.3f} x the memory")
    return 0


def measure(megapixels: tuple[int, ...] = MEGAPIXELS, *, repeats: int = 5, progressive: bool = False) -> dict[str, Any]:
    """Ratios of ours to naive: speed (more is better), memory and whole_memory (less is better).

    Returns {"speed", "memory", "whole_memory": the worst of all photos, "photos": [{"megapixels",
    "file_bytes", "speed", "memory", "whole_memory", "ours": {"ms", "mb", "peak_mb"}, "naive": the same}]}.
    Times (milliseconds) and memory (MB, 1,000,000 bytes) are medians of `repeats`.

    Raises subprocess.CalledProcessError when a measured process fails; its own message is on stderr.
    """
    photos = []
    with tempfile.TemporaryDirectory(prefix="bench-thumbnails-") as folder:
        for size in megapixels:
            photo = os.path.join(folder, f"{size}.jpg")
            run_step("paint-progressive" if progressive else "paint", str(size), photo)
            runs: dict[str, list[dict[str, float]]] = {"ours": [], "naive": []}
            for _ in range(repeats):
                for kind, found in runs.items():
                    found.append(json.loads(run_step(kind, photo, os.path.join(folder, f"{kind}.jpg"))))
            photos.append(_row(size, os.path.getsize(photo), runs))
    return {
        "speed": min(row["speed"] for row in photos),
        "memory": max(row["memory"] for row in photos),
        "whole_memory": max(row["whole_memory"] for row in photos),
        "photos": photos,
    }


def _row(size: int, file_bytes: int, runs: dict[str, list[dict[str, float]]]) -> dict[str, Any]:
    ours, naive = (
        {key: round(statistics.median(run[key] for run in found), 2) for key in ("ms", "mb", "peak_mb")}
        for found in runs.values()
    )
    return {
        "megapixels": size,
        "file_bytes": file_bytes,
        "speed": round(naive["ms"] / ours["ms"], 3),
        "memory": round(ours["mb"] / naive["mb"], 4),
        "whole_memory": round(ours["peak_mb"] / naive["peak_mb"], 4),
        "ours": ours,
        "naive": naive,
    }


def run_step(*step: str) -> str:
    """Run this file in a fresh process, as a measured one or to paint a photo; what it printed."""
    command = [sys.executable, os.path.abspath(__file__), "--step", *step]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout


def _step(kind: str, source: str, dest: str) -> None:
    """What one measured process does; `kind` may also be to paint a photo of `source` megapixels."""
    if kind.startswith("paint"):
        _paint(int(source), dest, kind == "paint-progressive")
        return
    sys.path.insert(0, str(ROOT))
    from PIL import Image

    from handlers.thumbnail import make_thumbnail

    def thumbnail(path: str) -> None:
        if kind == "ours":
            make_thumbnail(path, dest, SIZE)
            return
        with Image.open(path) as opened:
            whole = opened.convert("RGB")
        scale = SIZE / max(whole.size)
        small = whole.resize((round(whole.width * scale), round(whole.height * scale)), Image.Resampling.LANCZOS)
        small.save(dest, quality=85)

    tiny = dest + "-tiny.jpg"
    Image.new("RGB", (8, 8)).save(tiny)
    thumbnail(tiny)
    before = _peak()
    start = time.perf_counter()
    thumbnail(source)
    seconds = time.perf_counter() - start
    after = _peak()
    print(json.dumps({"ms": seconds * 1e3, "mb": (after - before) / 1e6, "peak_mb": after / 1e6}))


def _peak() -> int:
    """The most memory this program has held, in bytes.

    Not ru_maxrss where /proc is there: that counts from before the exec, so a large parent's size would show.
    """
    try:
        with open("/proc/self/status") as file:
            return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmHWM"))
    except (OSError, StopIteration):
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024


def _paint(megapixels: int, path: str, progressive: bool) -> None:
    """A 3:2 JPEG as dense as a photo: soft colours with grain, about 3 bits a pixel."""
    from PIL import Image, ImageChops

    height = round((megapixels * 1e6 / 1.5) ** 0.5)
    size = (round(height * 1.5), height)
    chance = random.Random(megapixels)
    soft = Image.frombytes("RGB", (24, 16), chance.randbytes(24 * 16 * 3)).resize(size, Image.Resampling.BICUBIC)
    side = 512
    tile = Image.frombytes("RGB", (side, side), chance.randbytes(side * side * 3)).point(lambda value: value // 6)
    grain = Image.new("RGB", size)
    for top in range(0, size[1], side):
        for left in range(0, size[0], side):
            grain.paste(tile, (left, top))
    photo = ImageChops.add(soft, grain, 1, -21)
    photo.save(path, quality=88, progressive=progressive)


if __name__ == "__main__":
    sys.exit(main())
