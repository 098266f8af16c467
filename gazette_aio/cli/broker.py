"""`gazette-aio broker`: check and repair the data directory of a broker that isn't running."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gazette_aio.broker.inspection import Finding, Inspection
from gazette_aio.cli.shell.failures import CommandError
from gazette_aio.cli.shell.groups import CommandGroup
from gazette_aio.cli.shell.logs import log_options
from gazette_aio.cli.shell.output import json_option, print_json, print_line, print_table, progress
from gazette_aio.protocol.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Iterable

_DIRECTORY = click.argument(
    "data_dir", type=click.Path(exists=True, file_okay=False, path_type=Path)
)
_JSON = json_option("Print a line of JSON for each part.")


@click.group(cls=CommandGroup)
def broker() -> None:
    """Look after the data directory of a broker."""


@broker.command()
@_DIRECTORY
@_JSON
@log_options
def check(data_dir: Path, *, as_json: bool) -> None:
    """Check the files of DATA_DIR for damage. No file is changed.

    All content is read. The exit code is 1 if anything is damaged.
    """
    inspection = Inspection(data_dir)
    findings: list[Finding] = []
    try:
        with progress("checking", inspection.journals + 2) as bar:
            for finding in inspection.check():
                findings.append(finding)
                bar.advance(1)
    finally:
        inspection.close()
    _print(findings, as_json=as_json)
    damaged = sum(bool(finding.damage) for finding in findings)
    if damaged:
        raise CommandError(f"{damaged} of {len(findings)} parts are damaged")


@broker.command()
@_DIRECTORY
@_JSON
@log_options
def repair(data_dir: Path, *, as_json: bool) -> None:
    """Repair DATA_DIR, so that a broker can serve it again.

    Sound files are kept. All others are moved to directories `damaged-N` beside them. A repaired
    journal continues after its last acknowledged offset: lost content is a gap.
    """
    inspection = Inspection(data_dir)
    repaired: list[Finding] = []
    failure: StoreError | None = None
    try:
        for finding in inspection.repair():
            repaired.append(finding)  # noqa: PERF402 - Those before a failure count, too.
    except StoreError as error:
        failure = error
    finally:
        inspection.close()
    if repaired or as_json:
        _print(repaired, as_json=as_json)
    elif failure is None:
        print_line("nothing is damaged")
    if failure is not None:
        raise failure


def _print(findings: Iterable[Finding], *, as_json: bool) -> None:
    if as_json:
        for finding in findings:
            print_json(dataclasses.asdict(finding))
        return
    header = ("part", "journal", "begin", "sound", "acknowledged", "damage")
    rows = [
        (
            finding.path,
            finding.journal or "-",
            finding.begin,
            finding.sound_end,
            finding.acknowledged_end,
            finding.damage or "none",
        )
        for finding in findings
    ]
    print_table(header, rows, keep="damage")
