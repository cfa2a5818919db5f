"""Our thumbnails against decoding everything and resizing it; photos.py does the measuring."""

from __future__ import annotations

from benchmarks import photos
from benchmarks.figures import Section, progress
from benchmarks.options import Options

TITLE = "thumbnails of large JPEGs against decode-then-resize"


def run(section: Section, options: Options) -> None:
    """A row for each size of photo, and the worst of them."""
    sizes = photos.MEGAPIXELS[: 1 if options.quick else None]
    progress(f"JPEGs of {', '.join(map(str, sizes))} MP, {options.reps} processes of each kind")
    found = photos.measure(sizes, repeats=options.reps)
    for row in found["photos"]:
        name = f"{row['megapixels']} MP"
        section.add(f"{name}, ours", row["ours"]["ms"], "ms")
        section.add(f"{name}, decode-then-resize", row["naive"]["ms"], "ms")
        section.add(f"{name}, memory, ours", row["ours"]["mb"], "MB")
        section.add(f"{name}, memory, decode-then-resize", row["naive"]["mb"], "MB")
    section.add("speed, worst of the sizes", found["speed"], "x", at_least=1.5)
    section.add("memory, worst of the sizes", found["memory"], "x", at_most=0.6)
