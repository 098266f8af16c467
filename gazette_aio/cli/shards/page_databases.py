"""`gazette-aio shards import-pages`: databases of Gazette's own SQLite store as SQLite files."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Final, cast

import click

from gazette_aio.cli.shell.logs import log_options
from gazette_aio.cli.shell.output import print_line
from gazette_aio.protocol.errors import ConfigurationError, StoreError

if TYPE_CHECKING:
    from collections.abc import Iterable

PAGES_NAME: Final = "pageDB"
"""Directory in which Gazette's own SQLite store keeps pages."""

_DEFAULT_FAMILY: Final = "default"
_KEY_BYTES: Final = 8
_NOT_COPIED: Final = ("-shm",)

# Run in a process of its own, as its working directory matters: journals of several databases name
# their super-journal relatively, and are dropped if it isn't found.
_RECOVER: Final = """
import sqlite3, sys
for name in sys.argv[1:]:
    connection = sqlite3.connect(name, isolation_level=None)
    problems = [row[0] for row in connection.execute("PRAGMA integrity_check(1)")]
    if problems != ["ok"]:
        sys.exit(f"{name}: {problems[0]}")
    (mode,) = connection.execute("PRAGMA journal_mode=DELETE").fetchone()
    if mode != "delete":
        sys.exit(f"{name}: its write-ahead log can't be moved to the database")
    connection.close()
"""


@click.command("import-pages")
@click.argument("source", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.argument("target", type=click.Path(file_okay=False, path_type=Path))
@log_options
def import_pages(source: Path, target: Path) -> None:
    """Make SQLite files of the databases of Gazette's own SQLite store.

    SOURCE is a directory that `shards recover` has made, and isn't changed. TARGET must be empty or
    missing.
    """
    for path in import_page_database(source, target):
        print_line(f"imported {path}")


def import_page_database(
    source: str | os.PathLike[str], target: str | os.PathLike[str]
) -> tuple[Path, ...]:
    """Make SQLite files of the databases of Gazette's own SQLite store.

    That store keeps the pages of its databases in a RocksDB, `pageDB`, beside journals and
    write-ahead logs, which hold the latest commits. Each database becomes an SQLite file of its
    name, with all that is committed; `primary.db` is what `SQLiteStore` opens. There's no way back.

    Args:
        source: Directory that was recovered from a recovery log. It isn't changed.
        target: Directory of the files. It's made if it's missing, and must be empty.

    Returns:
        Paths of the databases.

    Raises:
        ConfigurationError: The source isn't of such a store, or the target isn't empty.
        StoreError: A database is damaged, or can't be read.
        OSError: A file can't be read or written.
    """
    source, target = Path(source), Path(target)
    pages = source / PAGES_NAME
    if not (pages / "CURRENT").is_file():
        raise ConfigurationError(f"{source} has no {PAGES_NAME}")
    target.mkdir(parents=True, exist_ok=True)
    if any(target.iterdir()):
        raise ConfigurationError(f"{target} isn't empty")
    try:
        paths = _write_databases(pages, target)
        _copy_logs(source, target, paths)
        _recover(target, paths)
    except BaseException:
        # A part of a database must not be taken for one.
        for path in target.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
        raise
    return tuple(target / path for path in paths)


def _write_databases(pages: Path, target: Path) -> list[PurePosixPath]:
    """Write the databases as of their pages, and return their paths below the target."""
    try:
        from rocksdict import AccessType, Options, Rdict  # noqa: PLC0415 - Of an extra.
    except ImportError as error:
        text = "importing pages needs rocksdict: pip install 'gazette-aio[rocksdb]'"
        raise ImportError(text) from error
    paths: list[PurePosixPath] = []
    options = Options(raw_mode=True)
    try:
        # Wire: each database has a column family of its name, such as `/primary.db`.
        families = Rdict.list_cf(os.fspath(pages), options)
        database = Rdict(
            os.fspath(pages),
            options=options,
            column_families={family: Options(raw_mode=True) for family in families},
            access_type=AccessType.read_only(error_if_log_file_exist=False),
        )
    except Exception as error:
        raise StoreError(f"opening {pages}: {error}") from error
    try:
        for family in sorted(families):
            if family == _DEFAULT_FAMILY:
                continue
            path = _relative(family)
            (target / path).parent.mkdir(parents=True, exist_ok=True)
            # Keys and values are bytes in raw mode.
            items = cast(
                "Iterable[tuple[bytes, bytes]]", database.get_column_family(family).items()
            )
            _write_pages(target / path, items)
            paths.append(path)
    finally:
        database.close()
    if not paths:
        raise StoreError(f"{pages} has no database")
    return paths


def _relative(family: str) -> PurePosixPath:
    path = PurePosixPath(family.lstrip("/"))
    if not path.parts or ".." in path.parts:
        raise StoreError(f"{family!r} isn't the name of a database")
    return path


def _write_pages(path: Path, items: Iterable[tuple[bytes, bytes]]) -> None:
    with path.open("xb") as file:
        for key, page in items:
            if len(key) != _KEY_BYTES:
                raise StoreError(f"{path.name} has a page whose key is {key!r}")
            # Wire: the key is the offset, big-endian.
            file.seek(int.from_bytes(key, "big"))
            file.write(page)


def _copy_logs(source: Path, target: Path, databases: list[PurePosixPath]) -> None:
    """Copy journals and write-ahead logs, but not the empty files in the place of databases."""
    for directory, names, files in os.walk(source):
        relative = Path(directory).relative_to(source)
        names[:] = [name for name in names if Path(directory, name) != source / PAGES_NAME]
        for name in files:
            if PurePosixPath(relative / name) in databases or name.endswith(_NOT_COPIED):
                continue
            (target / relative).mkdir(parents=True, exist_ok=True)
            shutil.copyfile(Path(directory) / name, target / relative / name)


def _recover(target: Path, databases: list[PurePosixPath]) -> None:
    """Have SQLite complete the databases by their logs, and check them."""
    done = subprocess.run(  # noqa: S603 - The program is Python, its arguments are paths here.
        [sys.executable, "-I", "-c", _RECOVER, *(f"./{path}" for path in databases)],
        cwd=target,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        text = done.stderr.strip().rpartition("\n")[2]
        raise StoreError(f"importing {PAGES_NAME}: {text}")
