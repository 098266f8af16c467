"""The public names of the protocol."""

from __future__ import annotations

import subprocess
import sys

import gazette_aio.protocol as pb
from gazette_aio.protocol import consumer, recoverylog


def test_every_message_is_public():
    for module, source in (
        (pb, pb.ReadRequest),
        (consumer, consumer.ShardSpec),
        (recoverylog, recoverylog.Segment),
    ):
        file = source.DESCRIPTOR.file
        assert {*dir(module)} >= {*file.message_types_by_name, *file.enum_types_by_name}


def test_heavy_modules_are_imported_when_needed():
    code = (
        "import sys, gazette_aio.protocol\n"
        "heavy = {'yaml', 'zstandard', 'cramjam', 'grpc', 'asyncio'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)
