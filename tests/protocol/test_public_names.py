"""The public names of the protocol."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import gazette_aio.protocol as pb
from gazette_aio.protocol import consumer, recoverylog


def kind_and_name(name: str) -> tuple[bool, bool, str]:
    """Return the key which puts constants first, then classes, then functions and modules."""
    return not name.isupper(), not name[0].isupper(), name


def test_all_is_sorted_and_names_every_import():
    imported = {
        alias.asname or alias.name
        for node in ast.walk(ast.parse(Path(pb.__file__).read_text("utf-8")))
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith(pb.__name__)
        for alias in node.names
    }
    assert sorted(imported, key=kind_and_name) == pb.__all__


def test_every_message_is_public():
    for module, source in (
        (pb, pb.ReadRequest),
        (consumer, consumer.ShardSpec),
        (recoverylog, recoverylog.Segment),
    ):
        file = source.DESCRIPTOR.file
        public = set(module.__all__)
        assert public >= set(file.message_types_by_name) | set(file.enum_types_by_name)
        assert sorted(module.__all__, key=kind_and_name) == module.__all__


def test_heavy_modules_are_imported_when_needed():
    code = (
        "import sys, gazette_aio.protocol\n"
        "heavy = {'yaml', 'zstandard', 'cramjam', 'grpc', 'asyncio'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, timeout=30)
