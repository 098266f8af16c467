"""How long tests of Spark may take, and what shows that a machine was too busy for Spark."""

import re

TEST_SECONDS = 900
"""A test may be the one which starts the JVM and the first workers, on a machine that's busy."""

DEADLINE_SECONDS = 480.0
"""For a query, or a driver, to come to its end."""

NOT_CONNECTED = "Python worker (failed )?to connect back"
"""Spark gives its Python processes 10 s to start, which no setting changes. Where a machine is busier than
that, what is tested isn't at fault."""


def was_too_slow(text: str) -> bool:
    """Return whether a driver ended since a process of its own was too slow."""
    return re.search(NOT_CONNECTED, text) is not None
