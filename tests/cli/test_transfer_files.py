from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import gazette_aio.protocol as pb
from gazette_aio.testing import journal_spec
from gazette_aio.testing.stub_broker import StubBroker
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


@pytest.mark.parametrize("source", [["a/journal"], ["-l", "name=a/journal"]])
async def test_fragments_below_the_file_root_are_read_without_a_broker(
    cli: CLI, tmp_path: Path, source: list[str]
) -> None:
    (tmp_path / "f").write_bytes(b"0123456789")
    async with StubBroker() as broker:
        spec = journal_spec("a/journal")
        route = pb.Route(members=[broker.header().process_id], endpoints=[broker.endpoint])
        listed = pb.ListResponse.Journal(spec=spec, mod_revision=1, route=route)
        broker.list_handler = lambda _: pb.ListResponse(header=broker.header(), journals=[listed])

        async def answer(request: pb.ReadRequest) -> AsyncIterator[pb.ReadResponse]:
            header = broker.header()
            if request.offset == 10:
                status = pb.Status.OFFSET_NOT_YET_AVAILABLE
                yield pb.ReadResponse(status=status, header=header, offset=10, write_head=10)
                return
            fragment = pb.Fragment(
                journal="a/journal",
                end=10,
                sum=pb.sha1_sum(b"0123456789"),
                compression_codec=pb.CompressionCodec.NONE,
            )
            response = pb.ReadResponse(header=header, write_head=10, fragment=fragment)
            response.fragment_url = "file:///f"
            yield response
            if not request.do_not_proxy:
                yield pb.ReadResponse(content=b"of broker!")

        broker.read_handler = answer
        env = {"BROKER_ADDRESS": broker.endpoint}
        done = await cli("journals", "read", *source, f"--file-root={tmp_path}", env=env)

    assert (done.code, done.out, done.err) == (0, b"0123456789", "")
