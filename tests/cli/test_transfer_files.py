from __future__ import annotations

import asyncio
import os
from pathlib import Path

from tests.cli.conftest import CLI


async def test_append_a_named_pipe(broker_cli: CLI, journal: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    writing = asyncio.create_task(asyncio.to_thread((tmp_path / "pipe").write_bytes, b"content"))

    appended = await broker_cli("journals", "append", journal, str(tmp_path / "pipe"))

    await writing
    assert appended.text == f"{journal}: appended 7 bytes at 0\n"


async def test_a_file_of_output_which_cannot_be_written(
    broker_cli: CLI, journal: str, tmp_path: Path
) -> None:
    done = await broker_cli("journals", "read", journal, "-o", str(tmp_path / "no" / "file"))

    assert done.code == 1
    assert done.err == f"gazette-aio: {tmp_path}/no/file: No such file or directory\n"
