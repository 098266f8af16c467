"""Generate the message modules of gazette_aio from the sources in this directory.

With `--check`, generate them elsewhere and fail if what's committed differs.
"""

from __future__ import annotations

import filecmp
import os
import sys
import tempfile
from pathlib import Path

import grpc_tools
from grpc_tools import protoc

PROTO = Path(__file__).resolve().parent
ROOT = PROTO.parent
PACKAGES = {
    "gazette_aio/protocol/_generated": ("broker", "consumer", "recoverylog"),
    "gazette_aio/consumer/keyspace/etcd/_generated": ("etcd",),
}
"""Sources by the package of their modules."""


def generate(target: Path) -> None:
    """Write modules and their stubs below `target`."""
    named = sorted(name for names in PACKAGES.values() for name in names)
    assert named == sorted(source.stem for source in PROTO.glob("*.proto")), "a source has no place"
    # The stub generator is a program beside the interpreter in use.
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    for package, names in PACKAGES.items():
        status = protoc.main(
            [
                "protoc",
                # Mapped to the package, so that generated modules import each other by full name.
                f"-I{package}={PROTO}",
                f"-I{Path(grpc_tools.__file__).parent / '_proto'}",
                f"--python_out={target}",
                f"--mypy_out=quiet:{target}",
                *(f"{package}/{name}.proto" for name in names),
            ]
        )
        if status != 0:
            sys.exit(status)


def outdated(fresh: Path) -> list[str]:
    """Return the committed modules that differ from those below `fresh`."""
    found = []
    for package in PACKAGES:
        written = {path.name for path in (fresh / package).iterdir()}
        committed = {path.name for path in (ROOT / package).glob("*_pb2.py*")}
        _, differing, missing = filecmp.cmpfiles(
            fresh / package, ROOT / package, sorted(written | committed), shallow=False
        )
        found += [f"{package}/{name}" for name in differing + missing]
    return found


def main() -> None:
    """Generate, or check."""
    if "--check" not in sys.argv[1:]:
        generate(ROOT)
        return
    with tempfile.TemporaryDirectory() as scratch:
        generate(Path(scratch))
        if found := outdated(Path(scratch)):
            sys.exit(f"not what proto/ generates: {', '.join(found)}: make protos")


if __name__ == "__main__":
    main()
