"""Names, paths and sums of fragments."""

from __future__ import annotations

import hashlib
import re
from typing import Final

from gazette_aio.protocol._generated.broker_pb2 import CompressionCodec, Fragment, SHA1Sum
from gazette_aio.protocol.errors import ValidationError, within
from gazette_aio.protocol.go.text import clean_path, join_path, parse_hex_int64
from gazette_aio.protocol.journal import validate_journal, validate_path_component

MAX_PATH_POSTFIX_LENGTH: Final = 512

_EXTENSIONS: Final[dict[int, str]] = {
    CompressionCodec.NONE: ".raw",
    CompressionCodec.GZIP: ".gz",
    CompressionCodec.ZSTANDARD: ".zst",
    CompressionCodec.SNAPPY: ".sz",
    CompressionCodec.GZIP_OFFLOAD_DECOMPRESSION: "",
}
_CODECS: Final[dict[str, CompressionCodec.ValueType]] = {
    ".raw": CompressionCodec.NONE,
    ".gz": CompressionCodec.GZIP,
    ".gzip": CompressionCodec.GZIP,
    ".zst": CompressionCodec.ZSTANDARD,
    ".zstandard": CompressionCodec.ZSTANDARD,
    ".sz": CompressionCodec.SNAPPY,
    ".snappy": CompressionCodec.SNAPPY,
    ".gzod": CompressionCodec.GZIP_OFFLOAD_DECOMPRESSION,
    "": CompressionCodec.GZIP_OFFLOAD_DECOMPRESSION,
}
_HEX_DIGITS: Final = re.compile(r"[0-9A-Fa-f]*", re.ASCII)


def codec_extension(codec: int) -> str:
    """Return the file name extension of a codec, such as `.gz`.

    Raises:
        ValidationError: The number isn't a codec.
    """
    if (extension := _EXTENSIONS.get(codec)) is None:
        raise ValidationError(f"invalid value ({codec_name(codec)})")
    return extension


def codec_from_extension(extension: str) -> CompressionCodec.ValueType:
    """Return the codec of a file name extension with its dot, in either case.

    Raises:
        ValidationError: No codec has the extension.
    """
    if (codec := _CODECS.get(extension.lower())) is None:
        raise ValidationError(f"unrecognized compression extension: {extension}")
    return codec


def codec_name(codec: int) -> str:
    """Return the name of a codec, or an unknown codec's number."""
    if codec in CompressionCodec.values():
        return CompressionCodec.Name(CompressionCodec.ValueType(codec))
    return str(codec)


def sha1_sum(data: bytes | bytearray | memoryview) -> SHA1Sum:
    """Return the SHA-1 sum of `data`."""
    return sum_from_digest(hashlib.sha1(data, usedforsecurity=False).digest())


def sum_from_digest(digest: bytes) -> SHA1Sum:
    """Return the message form of a SHA-1 digest of 20 bytes.

    Raises:
        ValidationError: The digest has another length.
    """
    if len(digest) != 20:
        raise ValidationError(f"invalid SHA1Sum length: {digest.hex()}")
    return SHA1Sum(
        part1=int.from_bytes(digest[:8], "big"),
        part2=int.from_bytes(digest[8:16], "big"),
        part3=int.from_bytes(digest[16:], "big"),
    )


def sum_to_digest(value: SHA1Sum) -> bytes:
    """Return the digest of 20 bytes."""
    return (value.part1 << 96 | value.part2 << 32 | value.part3).to_bytes(20, "big")


def sum_is_zero(value: SHA1Sum) -> bool:
    """Tell whether the sum is unset, as it is for an empty fragment."""
    return not (value.part1 or value.part2 or value.part3)


def content_name(fragment: Fragment) -> str:
    """Return the file name of a fragment.

    Raises:
        ValidationError: The fragment has no codec.
    """
    total = fragment.sum
    return (
        f"{fragment.begin:016x}-{fragment.end:016x}-"
        f"{total.part1:016x}{total.part2:016x}{total.part3:08x}"
        f"{codec_extension(fragment.compression_codec)}"
    )


def content_path(fragment: Fragment) -> str:
    """Return the path of a fragment below the root of its store.

    Don't open the path directly. Journal names and path postfixes may begin with `../`, so that the
    path may lead out of the root, or into the directory of another journal.
    `join_below(root, content_path(fragment))` refuses paths out of the root, and
    `join_below(root, fragment.journal, fragment.path_postfix, content_name(fragment))` both kinds.

    Raises:
        ValidationError: The fragment has no codec.
    """
    return join_path(fragment.journal, fragment.path_postfix, content_name(fragment))


def content_length(fragment: Fragment) -> int:
    """Return the number of bytes of content."""
    return fragment.end - fragment.begin


def parse_fragment(journal: str, path: str) -> Fragment:
    """Return the fragment of a file.

    Args:
        journal: Name of the journal.
        path: Path of the file, relative to the directory of the journal.

    Raises:
        ValidationError: The path isn't a fragment's.
    """
    directory, slash, _ = path.rpartition("/")
    postfix = clean_path(directory or slash)
    # An unclean path leaves a name which isn't a number, and thus fails below.
    name = path if postfix == "." else path[len(postfix) + 1 :]
    dot = name.rfind(".", name.rfind("/") + 1)
    stem, extension = (name, "") if dot < 0 else (name[:dot], name[dot:])
    fields = stem.split("-")
    if len(fields) != 3:
        raise ValidationError(f"wrong Fragment format: {stem}")
    begin = within("Begin", parse_hex_int64, fields[0])
    end = within("End", parse_hex_int64, fields[1])
    digest = within("Sum", _parse_hex, fields[2])
    total = sum_from_digest(digest)
    codec = codec_from_extension(extension)
    postfix = "" if postfix == "." else postfix
    # Validate first: a message may not even hold invalid text.
    _validate(journal, begin, end, codec, postfix)
    return Fragment(
        journal=journal,
        begin=begin,
        end=end,
        sum=total,
        compression_codec=codec,
        path_postfix=postfix,
    )


def validate_fragment(fragment: Fragment) -> None:
    """Check the journal, range, codec and path postfix of a fragment.

    Raises:
        ValidationError: A field isn't valid.
    """
    _validate(
        fragment.journal,
        fragment.begin,
        fragment.end,
        fragment.compression_codec,
        fragment.path_postfix,
    )


def _validate(journal: str, begin: int, end: int, codec: int, path_postfix: str) -> None:
    within("Journal", validate_journal, journal)
    if begin > end:
        raise ValidationError(f"expected Begin <= End (have {begin}, {end})")
    within("CompressionCodec", validate_codec, codec)
    within(
        "PathPostfix",
        validate_path_component,
        path_postfix,
        min_length=0,
        max_length=MAX_PATH_POSTFIX_LENGTH,
    )


def validate_codec(codec: int) -> None:
    """Check that `codec` is known.

    Raises:
        ValidationError: The codec is unknown.
    """
    if codec not in _EXTENSIONS:
        raise ValidationError(f"invalid value ({codec_name(codec)})")


def _parse_hex(text: str) -> bytes:
    if not _HEX_DIGITS.fullmatch(text):
        bad = next(char for char in text if not _HEX_DIGITS.fullmatch(char))
        raise ValidationError(f"encoding/hex: invalid byte: U+{ord(bad):04X} '{bad}'")
    if len(text) % 2:
        raise ValidationError("encoding/hex: odd length hex string")
    return bytes.fromhex(text)
