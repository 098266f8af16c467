"""Time limits of tests of Spark, and the sign of a machine that was too busy for Spark."""

import re

TEST_SECONDS = 900
"""Time-out of a test, which may have to start the JVM and the first workers on a busy machine."""

DEADLINE_SECONDS = 480.0
"""Most seconds for a query, or a driver, to end."""

NOT_CONNECTED = "Python worker (failed )?to connect back"
"""Spark's error if a Python process needs more than 10 s to start, which no setting changes. The
machine was too busy then, and the tested code isn't at fault."""


def was_too_slow(text: str) -> bool:
    """Return whether a driver failed because its Python process was too slow to start."""
    return re.search(NOT_CONNECTED, text) is not None
