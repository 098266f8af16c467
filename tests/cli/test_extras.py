"""Commands of an installation without extras."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gazette_aio.broker.stores.object_config import check_installed
from gazette_aio.cli.shell.failures import exit_code
from gazette_aio.protocol import StoreError

EXTRAS = (
    "aiosqlite", "apsw", "google_crc32c", "grpc_health", "grpc_reflection", "numpy", "obstore",
    "opentelemetry", "prometheus_client", "psycopg", "pyarrow", "pydantic", "pyspark", "pytest", "rocksdict", "sqlalchemy",
    "starlette", "uvloop",
)  # fmt: skip

_PROGRAM = f"""
import sys
sys.modules.update(dict.fromkeys({EXTRAS!r}))
from gazette_aio.cli.app import run
sys.exit(run(sys.argv[1:]))
"""


def without_extras(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", _PROGRAM, *args], capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(
    "args",
    [
        ["shards", "recover", "--id=a", "--dir=/nowhere/at/all"],
        ["shards", "prune", "-l", ""],
    ],
)
def test_a_missing_extra_is_one_line(args: list[str]) -> None:
    done = without_extras(*args)

    assert (done.returncode, done.stdout) == (2, "")
    text = "recovery logs need google-crc32c: pip install 'gazette-aio[consumer]'"
    assert done.stderr == f"gazette-aio: {text}\n"


def test_a_missing_extra_of_a_store(monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(StoreError, match=r"need obstore: pip install 'gazette-aio\[server\]'") as e:
        check_installed("s3")
    assert exit_code(e.value) == 2


def test_a_text_alone_does_not_make_an_error_that_of_an_extra() -> None:
    damaged = StoreError("damaged is the file named pip install 'gazette-aio[server]'")
    assert exit_code(damaged) == 1


def test_commands_of_journals_import_no_broker_and_no_consumer() -> None:
    program = """
import sys
from gazette_aio.cli.app import run
run(["journals", "prune", "--help"])
servers = ("gazette_aio.broker", "gazette_aio.consumer")
sys.exit(repr([name for name in sys.modules if name.startswith(servers)]))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert done.stderr == b"[]\n"


def test_a_missing_extra_of_the_broker(tmp_path: Path) -> None:
    done = without_extras("serve", "--grpc-extras", f"--data-dir={tmp_path / 'data'}")

    assert (done.returncode, done.stdout) == (2, "")
    text = "grpc_extras need grpcio-health-checking and grpcio-reflection"
    assert done.stderr == f"gazette-aio: {text}: pip install 'gazette-aio[server]'\n"
    assert not any(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize(
    "args",
    [
        ["--help"], ["journals", "--help"], ["journals", "prune", "--help"], ["shards", "list", "--help"],
        ["serve", "--help"], ["console", "--help"], ["broker", "--help"], ["bench", "--help"],
        ["doctor", "--help"], ["print-config"], ["completion", "bash"], ["attach-uuids", "--help"],
    ],
)  # fmt: skip
def test_commands_do_without_extras(args: list[str]) -> None:
    done = without_extras(*args)

    assert (done.returncode, done.stderr) == (0, "")
