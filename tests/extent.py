"""Extent of tests that try cases at random: the seeded form by default, the long one by `--long`.

The seeded form tries the same cases in each run. The long form tries other ones each time, and many
more; what fails there names its seed, and `GAZETTE_SEED` repeats it in either form.
"""

from __future__ import annotations

import os
import secrets
from typing import Any, Final, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.internal.constants_ast import Constants

T = TypeVar("T")

EXAMPLES: Final = 40
"""How many examples the seeded form tries, unless a test says else by `examples()`."""
LONG_FACTOR: Final = 10
"""How many times as many the long form tries."""
_SEED_BITS: Final = 32
_is_long = False

# How fast examples are made and tried is up to what else the machine has to do.
_COMMON: Final[dict[str, Any]] = {
    "deadline": None,
    "print_blob": True,
    "suppress_health_check": [HealthCheck.too_slow],
}
# Hypothesis tries literals of the project's modules too: those which happen to be imported by then.
pytest.MonkeyPatch().setattr(
    "hypothesis.internal.conjecture.providers._get_local_constants", Constants
)
settings.register_profile("seeded", max_examples=EXAMPLES, derandomize=True, **_COMMON)
settings.register_profile("long", max_examples=LONG_FACTOR * EXAMPLES, **_COMMON)


def choose(*, long: bool) -> None:
    """Choose the form. Modules of tests ask for it while they are imported."""
    global _is_long
    _is_long = long
    settings.load_profile("long" if long else "seeded")
    if long:
        # Processes which share the tests must agree on their names.
        os.environ.setdefault("GAZETTE_SEED", str(secrets.randbits(_SEED_BITS)))


def of(seeded: T, long: T) -> T:
    """Return a number of cases, or whatever else the forms differ in."""
    return long if _is_long else seeded


def examples(seeded: int) -> settings:
    """Return settings of a test of which the seeded form takes another number of examples."""
    return settings(max_examples=of(seeded, LONG_FACTOR * seeded))


def seed() -> int:
    """Return the seed of a test's cases."""
    return int(os.environ.get("GAZETTE_SEED") or 0)


def seeds(seeded: int, long: int = 0) -> range:
    """Return the seeds of `seeded` cases, or of `long` ones, by default ten times as many."""
    begin = seed()
    return range(begin, begin + of(seeded, long or LONG_FACTOR * seeded))
