"""Ways to damage a file, at random."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import random
    from pathlib import Path


def files_below(directory: Path) -> list[Path]:
    """Return files that hold something acknowledged, in a stable order."""
    return sorted(
        path
        for path in directory.rglob("*")
        if path.is_file() and path.name != "LOCK" and path.stat().st_size
    )


def damage(rng: random.Random, directory: Path) -> str:
    """Damage a file below `directory`; return what was done."""
    paths = files_below(directory)
    path = rng.choice(paths)
    ways = (flip, cut, zero, overwrite, remove, swap)
    way = rng.choice(ways)
    way(rng, path, paths)
    return f"{way.__name__} {path.relative_to(directory)}"


def flip(rng: random.Random, path: Path, _: list[Path]) -> None:
    data = bytearray(path.read_bytes())
    for _number in range(rng.choice((1, 1, 1, 3))):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    path.write_bytes(data)


def cut(rng: random.Random, path: Path, _: list[Path]) -> None:
    os.truncate(path, rng.randrange(path.stat().st_size))


def zero(rng: random.Random, path: Path, _: list[Path]) -> None:
    data = bytearray(path.read_bytes())
    begin = rng.randrange(len(data))
    end = min(len(data), begin + rng.choice((1, 16, 512, 4096)))
    data[begin:end] = bytes(end - begin)
    path.write_bytes(data)


def overwrite(rng: random.Random, path: Path, _: list[Path]) -> None:
    data = bytearray(path.read_bytes())
    begin = rng.randrange(len(data))
    noise = rng.randbytes(min(len(data) - begin, rng.choice((1, 16, 512))))
    data[begin : begin + len(noise)] = noise
    path.write_bytes(data)


def remove(_: random.Random, path: Path, __: list[Path]) -> None:
    path.unlink()


def swap(rng: random.Random, path: Path, paths: list[Path]) -> None:
    other = rng.choice(paths)
    spare = path.with_name("swapped")
    shutil.move(path, spare)
    if other != path:
        shutil.move(other, path)
    shutil.move(spare, other)
