"""Fragment files of a real broker."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import gazette_aio.protocol as pb
from gazette_aio.client import install_file_transport, open_fragment_url
from tests.client.fragments.fragment_support import read_all, read_until_error

CODEC = pb.CompressionCodec


@pytest.fixture
def codecs(vectors: Path) -> Path:
    return vectors / "fragment_codecs"


def load(codecs: Path, section: str) -> list[dict[str, Any]]:
    cases: list[dict[str, Any]] = json.loads((codecs / "index.json").read_text())[section]
    assert cases
    return cases


def fragment_of(case: dict[str, Any]) -> pb.Fragment:
    return pb.Fragment(
        journal=case["journal"],
        begin=case["begin"],
        end=case["end"],
        sum=pb.sum_from_digest(bytes.fromhex(case["sha1"])),
        compression_codec=CODEC.Value(case["codec"]),
    )


async def test_files(codecs: Path) -> None:
    with install_file_transport(codecs):
        for case in load(codecs, "files"):
            fragment, content = fragment_of(case), (codecs / case["content"]).read_bytes()
            url = f"file:///{case['file']}"
            assert (
                await read_all(await open_fragment_url(fragment, fragment.begin, url, verify=True))
                == content
            )
            middle = len(content) // 2
            reader = await open_fragment_url(fragment, fragment.begin + middle, url)
            assert reader.offset == fragment.begin + middle
            assert await read_all(reader) == content[middle:]


async def test_damaged_files(codecs: Path) -> None:
    with install_file_transport(codecs):
        for case in load(codecs, "damaged"):
            length = case["plain_length"]
            fragment = pb.Fragment(
                journal="a/journal",
                begin=7,
                end=7 + length,
                compression_codec=CODEC.Value(case["codec"]),
            )
            reader = await open_fragment_url(fragment, 7, f"file:///{case['file']}")
            data, error = await read_until_error(reader)
            if case["codec"] == "ZSTANDARD" and case["note"] == "one byte damaged":
                # These frames carry no checksum: it takes the sum of the fragment.
                assert (len(data), error) == (length, None)
                fragment.sum.part1 = 1
                reader = await open_fragment_url(
                    fragment, 7, f"file:///{case['file']}", verify=True
                )
                data, error = await read_until_error(reader)
            assert isinstance(error, pb.FragmentError | pb.UnexpectedEOFError), case
            if case["note"] != "trailing garbage":  # It may look like the begin of a frame.
                is_cut = case["note"] in ("cut short", "empty file")
                assert isinstance(error, pb.UnexpectedEOFError) is is_cut, case
            assert (error.journal, error.offset) == ("a/journal", 7 + len(data))
            if isinstance(error, pb.FragmentError):
                assert f"of a/journal at {error.offset}" in str(error)
            # The end is withheld until the file has ended well.
            assert len(data) < length
