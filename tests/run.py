"""Run pytest, and then what failed, if it's little, once more by itself.

    python -m tests.run ARGUMENTS OF PYTEST

One test in ten thousand may fail on a machine that stalls. Its name is printed even if it passes at
the second attempt, because it may have found a race.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

MOST = 3
"""Failures that a machine may be to blame for."""


def main(arguments: list[str]) -> int:
    """Return the exit code of pytest."""
    with tempfile.TemporaryDirectory() as directory:
        command = [sys.executable, "-m", "pytest", "-o", f"cache_dir={directory}", *arguments]
        if (code := subprocess.call(command)) != 1:  # Some tests failed.
            return code
        try:
            failed = list(json.loads(Path(directory, "v/cache/lastfailed").read_text()))
        except FileNotFoundError:
            return code  # The run as a whole is at fault, and no test.
        if len(failed) > MOST:
            return code
        print("Once more, by themselves:", *failed, sep="\n  ", flush=True)
        alone = ["-n", "0", "--last-failed", "--last-failed-no-failures=none"]
        if (code := subprocess.call([*command, *alone])) == 0:
            print("UNSTABLE: these tests failed at first:", *failed, sep="\n  ", flush=True)
        return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
