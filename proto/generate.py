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
PACKAGE = "gazette_aio/protocol/_generated"


def generate(target: Path) -> None:
    """Write modules and their stubs below `target`."""
    # The stub generator is a program beside the interpreter in use.
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    sources = [f"{PACKAGE}/{source.name}" for source in sorted(PROTO.glob("*.proto"))]
    status = protoc.main(
        [
            "protoc",
            # Mapped to the package, so that generated modules import each other by full name.
            f"-I{PACKAGE}={PROTO}",
            f"-I{Path(grpc_tools.__file__).parent / '_proto'}",
            f"--python_out={target}",
            f"--mypy_out=quiet:{target}",
            *sources,
        ]
    )
    if status != 0:
        sys.exit(status)


def main() -> None:
    """Generate, or check."""
    if "--check" not in sys.argv[1:]:
        generate(ROOT)
        return
    with tempfile.TemporaryDirectory() as scratch:
        generate(Path(scratch))
        fresh = {path.name for path in (Path(scratch) / PACKAGE).iterdir()}
        committed = {path.name for path in (ROOT / PACKAGE).glob("*_pb2.py*")}
        _, differing, missing = filecmp.cmpfiles(
            Path(scratch) / PACKAGE, ROOT / PACKAGE, sorted(fresh | committed), shallow=False
        )
    if differing or missing:
        sys.exit(
            f"{PACKAGE} isn't what proto/ generates ({', '.join(differing + missing)}): make protos"
        )


if __name__ == "__main__":
    main()
