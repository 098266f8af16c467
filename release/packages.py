"""`python release/packages.py DIST`: check an sdist and its wheel, as users install them.

It builds the sdist without cargo, and publishes and reads by the base installation of both wheels;
prints how large that of the first is, without byte code, and its largest parts; and uses each extra
where it alone is installed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
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
from gazette_aio import EmbeddedBroker, Publisher, ReadCommittedIter, connect, json_adapter
from gazette_aio.testing import create_journals, journal_spec

async def main():
    async with EmbeddedBroker(fsync="off") as broker, connect(broker.endpoint) as client:
        await create_journals(client, journal_spec("a/journal", labels={"content-type": JSON}))
        publisher = Publisher(client.appends, json_adapter())
        async with publisher.transaction():
            await publisher.publish_uncommitted(lambda message: ("a/journal", JSON), {"a": 1})
        messages = ReadCommittedIter("a/journal", json_adapter(), client=client, skip_acks=True)
        assert [envelope.message["a"] async for envelope in messages] == [1]

JSON = "application/x-ndjson"
asyncio.run(main())
"""
CORE = "gazette_aio/message/core/_native"


def run(*command: str | Path, directory: Path, **settings: str) -> str:
    """Run a program away from the sources, and return its output."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        command,
        check=True,
        cwd=directory,
        env=environment | settings,
        stdout=subprocess.PIPE,
        text=True,
    )
    return done.stdout


def install(wheel: Path, extra: str, directory: Path) -> Path:
    """Install the wheel with one extra, or none, and return its interpreter."""
    venv = directory / f"venv-{extra or wheel.name}"
    run(sys.executable, "-m", "venv", venv, directory=directory)
    python = venv / "bin" / "python"
    what = f"{wheel}[{extra}]" if extra else wheel
    quiet = ("--quiet", "--disable-pip-version-check")
    run(python, "-m", "pip", "install", *quiet, "--no-compile", what, directory=directory)
    return python


def build_without_cargo(sdist: Path, python: Path, directory: Path) -> Path:
    """Return a wheel of the sdist that pip builds where there are no programs."""
    with tarfile.open(sdist) as archive:
        compiled = [n for n in archive.getnames() if n.endswith((".so", ".dylib", "Cargo.lock"))]
    assert not compiled, f"the sdist has {compiled}"
    built = directory / "plain"
    # Without the cache, which would give a wheel of an earlier sdist of this path.
    quiet = ("--quiet", "--no-deps", "--no-cache-dir")
    command = (python, "-m", "pip", "wheel", *quiet, "--wheel-dir", built, sdist)
    run(*command, directory=directory, PATH=str(python.parent))
    (wheel,) = built.glob("*.whl")
    return wheel


def check_base(wheel: Path, python: Path, form: str, directory: Path) -> None:
    """Check the content of a wheel, and use its base installation."""
    with zipfile.ZipFile(wheel) as archive:
        files = sorted(each for each in archive.namelist() if each.startswith(CORE))
    assert files == [f"{CORE}.abi3.so"] * (form == "native") + [f"{CORE}.pyi"], files
    version = run(python.with_name("gazette-aio"), "--version", directory=directory)
    assert f"{form} core" in version, version
    run(python, "-W", "error", "-c", PROGRAM, directory=directory)
    print(f"{wheel.name} works, {wheel.stat().st_size / 1e6:.1f} MB")


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
    """Check an sdist and a wheel, and return the exit code."""
    (sdist,) = dist.resolve().glob("*.tar.gz")
    (wheel,) = dist.resolve().glob("*.whl")
    with tempfile.TemporaryDirectory() as temporary:
        directory = Path(temporary)
        python = install(wheel, "", directory)
        parts = sizes(python)
        total = sum(parts.values())
        print(f"the base installation has {total / 1e6:.1f} MB without byte code")
        for name, size in sorted(parts.items(), key=lambda part: -part[1])[:5]:
            print(f"  {name} {size / 1e6:.1f} MB")
        check_base(wheel, python, "native" if "-cp311-abi3-" in wheel.name else "plain", directory)
        plain = build_without_cargo(sdist, python, directory)
        assert plain.name.endswith("-py3-none-any.whl"), plain.name
        check_base(plain, install(plain, "", directory), "plain", directory)
        for extra in extras_of(wheel):
            if extra not in HEAVY:
                python = install(wheel, extra, directory)
                run(python, HERE / "extras.py", extra, directory=directory)
                print(f"gazette-aio[{extra}] works", flush=True)
    return 0 if total < ALLOWED_BYTES else 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
