"""Parallelism of a session of Spark, as far as a planner can know it.

Spark's planners are processes without a session, and Spark passes them no settings. But they are
started by the driver's JVM, whose command line has the master and the settings with which its
launcher started it.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_DEFAULT: Final = "spark.default.parallelism"
_MASTER: Final = "spark.master"
_INSTANCES: Final = "spark.executor.instances"
_CORES: Final = "spark.executor.cores"
_MOST_CORES: Final = "spark.cores.max"
_NAMES: Final = frozenset({_DEFAULT, _MASTER, _INSTANCES, _CORES, _MOST_CORES})
_OPTIONS: Final = {
    "--master": _MASTER,
    "--num-executors": _INSTANCES,
    "--executor-cores": _CORES,
    "--total-executor-cores": _MOST_CORES,
}
_LAUNCHER: Final = "org.apache.spark.deploy."
_LOCAL: Final = re.compile(r"local(?:\[\s*([0-9]{1,6}|\*)\s*(?:,.*)?\])?")
_LOCAL_CLUSTER: Final = re.compile(r"local-cluster\[\s*([0-9]{1,6})\s*,\s*([0-9]{1,6})\s*,.*\]")
_ANCESTORS: Final = 3


def session_parallelism() -> int | None:
    """Return the default parallelism of the session for which this process plans, if it's known."""
    for arguments in _command_lines():
        if any(argument.startswith(_LAUNCHER) for argument in arguments):
            return parallelism_of(settings_of(arguments), usable_cores())
    return None


def parallelism_of(settings: Mapping[str, str], cores: int) -> int | None:
    """Return the default parallelism of a session, or None if its settings don't say.

    Args:
        settings: Settings by name.
        cores: Cores of the driver's host.
    """

    def number(name: str) -> int:
        text = settings.get(name, "").strip()
        return int(text) if text.isascii() and text.isdigit() else 0

    if found := number(_DEFAULT):
        return found
    master = settings.get(_MASTER, "").strip()
    if match := _LOCAL.fullmatch(master):
        return cores if match[1] == "*" else max(int(match[1] or 1), 1)
    if match := _LOCAL_CLUSTER.fullmatch(master):
        return int(match[1]) * int(match[2]) or None
    return number(_MOST_CORES) or number(_INSTANCES) * max(number(_CORES), 1) or None


def settings_of(arguments: Iterable[str]) -> dict[str, str]:
    """Return the settings of a launcher's command line which decide the parallelism."""
    settings: dict[str, str] = {}
    former = ""
    for argument in arguments:
        if former == "--conf":
            name, _, value = argument.partition("=")
            if name in _NAMES:
                settings[name] = value
        elif former in _OPTIONS:
            settings[_OPTIONS[former]] = argument
        former = argument
    return settings


def usable_cores() -> int:
    """Return the number of cores which this process may use, or 1 if it's unknown."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1


def _command_lines() -> Iterable[list[str]]:
    """Yield the command lines of the nearest ancestors; none except on Linux."""
    process = os.getppid()
    for _ in range(_ANCESTORS):
        try:
            directory = Path(f"/proc/{process}")
            yield directory.joinpath("cmdline").read_text(errors="replace").split("\0")
            stat = directory.joinpath("stat").read_text(errors="replace")
        except OSError:
            return
        process = int(stat.rpartition(")")[2].split()[1])
