"""Damaged files of a broker: what was acknowledged is never gone or wrong without a word.

Invariants: a broker refuses to start on a damaged directory, or refuses each damaged journal by
DATA_LOSS, or has all; no offset is given twice; and a repaired directory is served, with what is
sound. Nothing else is raised, whatever the files have become.
"""

from __future__ import annotations

import logging
import random
import shutil
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import gazette_aio.protocol as pb
from benchmarks.attacks.damages import damage
from benchmarks.soaks.invariant import BrokenInvariantError, require
from gazette_aio import connect
from gazette_aio.broker import EmbeddedBroker
from gazette_aio.broker.inspection import Inspection
from gazette_aio.client import RetryPolicy
from gazette_aio.testing import create_journals, journal_spec

if TYPE_CHECKING:
    from gazette_aio import JournalClient
    from gazette_aio.broker.host.options import FsyncMode

_JOURNALS = ("attack/one", "attack/two")
_MODES: tuple[FsyncMode, ...] = ("commit", "interval", "off")
_ONCE = RetryPolicy(max_attempts=1)


async def attack(duration: float, seed: int) -> None:
    """Run for `duration` seconds."""
    rng = random.Random(seed)
    counts = {"whole": 0, "refused": 0, "repaired": 0}
    logging.getLogger("gazette_aio.broker").setLevel(logging.CRITICAL)
    try:
        with tempfile.TemporaryDirectory() as path:
            written = [(mode, await _write(Path(path, mode), mode, rng)) for mode in _MODES]
            end = time.monotonic() + duration
            while time.monotonic() < end:
                mode, content = rng.choice(written)
                await _damaged(Path(path, "damaged"), Path(path, mode), content, rng, counts)
    finally:
        logging.getLogger("gazette_aio.broker").setLevel(logging.NOTSET)
    print(f"damage: {counts}, intact", flush=True)


async def _write(directory: Path, mode: FsyncMode, rng: random.Random) -> dict[str, bytes]:
    """Append to some journals, and return their content; the files are those of a killed broker."""
    content = dict.fromkeys(_JOURNALS, b"")
    live = directory.with_name(f"live-{mode}")
    async with EmbeddedBroker(live, fsync=mode) as broker, connect(broker.endpoint) as client:
        await create_journals(client, *(journal_spec(name, length=1 << 15) for name in _JOURNALS))
        for _ in range(20):
            for name in _JOURNALS:
                data = rng.randbytes(rng.choice((10, 300, 5000)))
                await client.append(name, data)
                content[name] += data
        shutil.copytree(live, directory)
    return content


async def _damaged(
    directory: Path,
    sound: Path,
    content: dict[str, bytes],
    rng: random.Random,
    counts: dict[str, int],
) -> None:
    shutil.copytree(sound, directory)
    # Of several damages, one may hide what another one did: then there's no promise but an end.
    number = rng.choice((1, 1, 1, 2, 8))
    done = [damage(rng, directory) for _ in range(number)]
    known = content.copy() if number == 1 else None
    try:
        _check_only(directory)
        is_whole = await _serve(directory, known)
        counts["whole" if is_whole else "refused"] += 1
        if not is_whole and _repair(directory):
            is_served = await _serve(directory, known, is_repaired=True)
            require(is_served, "it isn't repaired")
            counts["repaired"] += 1
    except Exception as error:
        raise BrokenInvariantError(f"{error!r} after {', '.join(done)}") from error
    shutil.rmtree(directory)


def _check_only(directory: Path) -> None:
    inspection = Inspection(directory)
    try:
        list(inspection.check())
    finally:
        inspection.close()


def _repair(directory: Path) -> bool:
    """Repair a directory, and return whether that's possible."""
    inspection = Inspection(directory)
    try:
        list(inspection.repair())
    except pb.StoreError:
        return False  # Neither the snapshot of the key space is sound, nor what it replaced.
    finally:
        inspection.close()
    return True


async def _serve(
    directory: Path, known: dict[str, bytes] | None, *, is_repaired: bool = False
) -> bool:
    """Return whether a broker serves all journals, and require that nothing known is wrong."""
    broker = EmbeddedBroker(directory, fsync="commit")
    try:
        await broker.start()
    except (pb.StoreError, pb.ConfigurationError):
        return False
    try:
        async with connect(broker.endpoint, retry=_ONCE) as client:
            names = [journal.spec.name for journal in (await client.list()).journals]
            if known is not None and not is_repaired:
                require(names == list(_JOURNALS), f"only {names} are there")
            outcomes = [await _is_served(client, name, known, is_repaired) for name in names]
    finally:
        await broker.stop()
    return all(outcomes)


async def _is_served(
    client: JournalClient, journal: str, known: dict[str, bytes] | None, is_repaired: bool
) -> bool:
    """Return whether a journal is served, and require that it has what is known."""
    found: list[tuple[int, bytes]] = []
    is_readable = True
    async with client.read(journal) as reader:
        while True:
            try:
                data = await reader.read()
            except pb.OffsetJumpError:
                continue
            except pb.OffsetNotYetAvailableError:
                break
            except pb.DataLossError:
                is_readable = False
                break
            found.append((reader.offset - len(data), data))
    try:
        begin = (await client.append(journal, b"more")).commit.begin
    except pb.TransportError as error:
        require(error.code == "DATA_LOSS", f"{journal} refuses appends: {error}")
        require(not is_readable, f"{journal} refuses appends, but is read to its end")
        return False
    require(is_readable, f"{journal} takes appends, but can't be read")
    if known is not None:
        content = known[journal]
        for offset, data in found:
            at_offset = content[offset : offset + len(data)]
            require(data == at_offset, f"{journal} is wrong from {offset} on")
        require(begin >= len(content), f"{journal} gives offset {begin} twice")
        total = sum(len(data) for _, data in found)
        require(is_repaired or total == begin, f"{journal} has {total} bytes up to {begin}")
        known[journal] += b"more"
    return True
