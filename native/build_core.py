"""`python native/build_core.py`: compile the core of messages into the package, if cargo is there.

The package works without it. Then one line says why it's missing. `GAZETTE_AIO_BUILD_CORE` chooses:

* `try`, the default: without a usable cargo, go on without the compiled core.
* `require`: fail.
* `skip`: do nothing.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

MODULE = "gazette_aio/message/core/_native.abi3.so"
"""Place of the compiled module in the package."""

NATIVE = Path(__file__).resolve().parent
# PyO3 needs no interpreter for the stable ABI, and so one library fits all virtual environments.
SETTINGS = {"PYO3_NO_PYTHON": "1", "PYO3_BUILD_EXTENSION_MODULE": "1"}
# The oldest macOS of the Rust compiler, by processor.
OLDEST_MACOS = {"arm64": "11.0", "x86_64": "10.12"}


class UnavailableError(Exception):
    """The core can't be compiled here."""


def wish() -> str:
    """Return what `GAZETTE_AIO_BUILD_CORE` wants."""
    value = os.environ.get("GAZETTE_AIO_BUILD_CORE") or "try"
    if value not in ("try", "require", "skip"):
        sys.exit(f"GAZETTE_AIO_BUILD_CORE={value}: expected try, require or skip")
    return value


def platform_tag() -> str:
    """Return the platform of a wheel with the module."""
    if sys.platform == "darwin":
        machine = os.uname().machine
        version = os.environ.get("MACOSX_DEPLOYMENT_TARGET", OLDEST_MACOS[machine])
        return f"macosx_{version.replace('.', '_')}_{machine}"
    return sysconfig.get_platform().replace("-", "_").replace(".", "_")


def compiled() -> Path | None:
    """Compile the core unless its sources are unchanged, and return the library.

    Returns:
        None where the package stays plain; one line on stderr says why.

    Raises:
        SystemExit: It's required, and can't be compiled.
    """
    wanted = wish()
    if wanted == "skip":
        return None
    target = Path(os.environ.get("CARGO_TARGET_DIR", NATIVE / "target")).absolute()
    target.mkdir(parents=True, exist_ok=True)
    library = target / f"_native-{_digest()}.so"
    # Setups of two virtual environments may run side by side.
    with (target / ".build_core").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            if not library.exists():
                _compile(library)
        except UnavailableError as error:
            if wanted == "require":
                sys.exit(f"the core of messages can't be compiled: {error}")
            print(
                "gazette_aio goes without its compiled core, and reads and publishes messages more"
                f" slowly: {str(error).splitlines()[0]} (it needs Rust 1.85 or newer)",
                file=sys.stderr,
            )
            return None
    return library


def _digest() -> str:
    """Return what the library depends on, in short."""
    found = hashlib.sha256()
    for setting in (sysconfig.get_config_var("HOST_GNU_TYPE"), os.environ.get("RUSTFLAGS")):
        found.update(f"{setting}\0".encode())
    for path in sorted((NATIVE / "Cargo.toml", *NATIVE.rglob("*.rs"), Path(__file__))):
        if not path.is_relative_to(NATIVE / "target"):
            found.update(f"{path.relative_to(NATIVE)}\0".encode() + path.read_bytes())
    return found.hexdigest()[:16]


def _compile(library: Path) -> None:
    if (cargo := shutil.which("cargo")) is None:
        raise UnavailableError("cargo isn't found")
    environment = {**os.environ, **SETTINGS}
    if sys.platform == "darwin":
        environment.setdefault("MACOSX_DEPLOYMENT_TARGET", OLDEST_MACOS[os.uname().machine])
    command = (cargo, "build", "--release", "--message-format=json-render-diagnostics")
    # Crates that were downloaded before are enough.
    for network in (("--offline",), ()):
        done = subprocess.run(
            (*command, *network),
            check=False,
            cwd=NATIVE,
            env=environment,
            capture_output=True,
            text=True,
        )
        if done.returncode == 0:
            break
    else:
        raise UnavailableError(_reason(done.stderr) + "\n" + done.stderr)
    for old in library.parent.glob("_native-*.so"):
        old.unlink()
    messages = map(json.loads, done.stdout.splitlines())
    (built,) = (each for each in messages if each.get("target", {}).get("name") == "_native")
    _copy(Path(built["filenames"][0]), library)


def _reason(errors: str) -> str:
    """Return the error of cargo in one line, with its cause."""
    lines = [line.strip() for line in errors.splitlines() if line.strip()] or ["cargo failed"]
    first = next((line for line in lines if line.startswith("error")), lines[-1])
    first = first.removeprefix("error: ")
    return f"{first}: {lines[-1]}" if "Caused by:" in lines else first


def _copy(source: Path, target: Path) -> None:
    """Replace a file at once: programs may have loaded it."""
    new = target.with_name(f"{target.name}.{os.getpid()}")
    shutil.copyfile(source, new)
    new.replace(target)


def install() -> None:
    """Put the module into this tree, or remove one of other sources."""
    module = NATIVE.parent / MODULE
    if library := compiled():
        if not module.exists() or module.read_bytes() != library.read_bytes():
            _copy(library, module)
        module.touch()  # `doctor` compares it with its sources.
    elif wish() == "try":
        module.unlink(missing_ok=True)


if __name__ == "__main__":
    install()
