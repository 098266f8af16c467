"""`python release/packages.py DIST`: check the wheel in a directory, as users install it.

It prints how large the base installation is, without byte code, and its largest parts; uses each
extra where it alone is installed; and appends and reads by the base installation.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import zipfile
from email.parser import BytesParser
from pathlib import Path

HERE = Path(__file__).parent
ALLOWED_BYTES = 80_000_000
HEAVY = ("spark",)
"""Extras of hundreds of megabytes, which other targets install."""
PROGRAM = """
import asyncio
from gazette_aio import EmbeddedBroker, connect
from gazette_aio.testing import create_journals, journal_spec

async def main():
    async with EmbeddedBroker(fsync="off") as broker, connect(broker.endpoint) as client:
        await create_journals(client, journal_spec("a/journal"))
        await client.append("a/journal", b"content")
        async with client.read("a/journal", end_offset=7) as reader:
            assert await reader.read() == b"content"

asyncio.run(main())
"""


def run(*command: str | Path, directory: Path) -> None:
    """Run a program away from the sources."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    subprocess.run(command, check=True, cwd=directory, env=environment)


def install(wheel: Path, extra: str, directory: Path) -> Path:
    """Install the wheel with one extra, or none, and return its interpreter."""
    venv = directory / f"venv-{extra or 'base'}"
    run(sys.executable, "-m", "venv", venv, directory=directory)
    python = venv / "bin" / "python"
    what = f"{wheel}[{extra}]" if extra else wheel
    quiet = ("--quiet", "--disable-pip-version-check")
    run(python, "-m", "pip", "install", *quiet, "--no-compile", what, directory=directory)
    return python


def sizes(python: Path) -> dict[str, int]:
    """Return the bytes of each package of an installation, without byte code and pip."""
    (packages,) = (python.parents[1] / "lib").glob("python*/site-packages")
    found: dict[str, int] = {}
    for path in packages.rglob("*"):
        name = path.relative_to(packages).parts[0]
        installer = name.startswith(("pip", "setuptools", "_distutils", "pkg_resources"))
        if path.is_file() and not installer and path.suffix != ".pyc":
            found[name] = found.get(name, 0) + path.stat().st_size
    return found


def extras_of(wheel: Path) -> list[str]:
    """Return the names of a wheel's extras."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return BytesParser().parsebytes(archive.read(name)).get_all("Provides-Extra", [])


def main(dist: Path) -> int:
    """Check a wheel, and return the exit code."""
    (wheel,) = dist.resolve().glob("*.whl")
    with tempfile.TemporaryDirectory() as temporary:
        directory = Path(temporary)
        python = install(wheel, "", directory)
        parts = sizes(python)
        total = sum(parts.values())
        print(f"the base installation has {total / 1e6:.1f} MB without byte code")
        for name, size in sorted(parts.items(), key=lambda part: -part[1])[:5]:
            print(f"  {name} {size / 1e6:.1f} MB")
        run(python, "-W", "error", "-c", PROGRAM, directory=directory)
        for extra in extras_of(wheel):
            if extra not in HEAVY:
                python = install(wheel, extra, directory)
                run(python, HERE / "extras.py", extra, directory=directory)
                print(f"gazette-aio[{extra}] works", flush=True)
    return 0 if total < ALLOWED_BYTES else 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
