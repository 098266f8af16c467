"""Adapter of JSON objects: stamps their UUIDs, and reads them. Module `json_types` makes it."""

from __future__ import annotations

from math import isfinite
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from uuid import UUID

import msgspec

from gazette_aio.message.adapters.base import Lines, SplitMessages, UUIDPlace
from gazette_aio.message.adapters.members import (
    ENCODING_ERRORS,
    EncodeHook,
    find_member,
    is_custom,
    refuse_non_finite,
    why_not_encodable,
)
from gazette_aio.message.core import Stamper, count_objects
from gazette_aio.message.core.plain.stamps import member_reader
from gazette_aio.message.uuid import TEXT_LENGTH, ZERO_UUID, parse_uuid
from gazette_aio.protocol.errors import ValidationError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

T = TypeVar("T")

_MEMBER_FOLLOWS = b'{"'
_SPACE = b" \t\r\n"
_NULL = b"null"


class JSONAdapter(Generic[T]):
    """Adapter of messages that are JSON objects. Made by `json_adapter()`.

    The UUID is text. It's written in the place of the message's own member for it, or else as the
    first member. On reading, a missing or null UUID is zero.
    """

    uuid_is_text = True

    def __init__(
        self,
        path: tuple[str, ...],
        *,
        decode: Callable[[bytes], T],
        decode_lines: Callable[[bytes], list[T]] | None = None,
        encode: Callable[[T], bytes],
        encode_lines: Callable[[Sequence[T]], bytes] | None = None,
        has_top_member: Callable[[T], bool] | None,
        check_floats: bool,
        float_members: tuple[str, ...] = (),
        message_types: tuple[type, ...] | None = None,
        enc_hook: EncodeHook | None = None,
    ) -> None:
        self.message_types = message_types
        """Classes of messages; None if they aren't known."""
        self._enc_hook = enc_hook
        self.uuid_path = path
        """Names of the members that lead to the UUID."""
        self.decode = decode  # Hot: a method would be one more call for each message.
        """Return the message of a JSON document."""
        self.decode_lines = decode_lines
        """Return the messages of JSON documents, each followed by a newline; or None."""
        self._encode = encode
        self._encode_lines = encode_lines
        self._has_top_member = has_top_member
        self._check_floats = check_floats
        # All the floats of a message, where they're known.
        self._floats = [attrgetter(member) for member in float_members]
        names = [msgspec.json.encode(name) for name in path]
        self._find_uuid = member_reader(path, Any)
        self._names = names
        self._top_name = names[0]
        self._head = b"".join(b"{" + name + b":" for name in names) + b'"'
        self._inner = b"}" * (len(path) - 1)
        self._after = b'"' + self._inner + b","
        self._ack = b"}" if len(path) == 1 else b',"ack":true' + b"}" * len(path)
        self.uuid_place: UUIDPlace | None = UUIDPlace(self._head, b'"', text=True)

    def encode(self, message: T, uuid: UUID) -> bytes:
        """Return the document of `message`, stamped with `uuid`.

        Raises:
            ValidationError: It's not an object, or has a member that JSON can't hold.
        """
        head, rest = self._split(message)
        return head + str(uuid).encode() + rest

    def encoder(
        self, producer: bytes, flags: int, suffix: bytes = b""
    ) -> Callable[[T, int], bytes]:
        """Return a function of a message and a clock, which returns the stamped document."""
        # Hot: this is `encode()` for messages without a UUID of their own, without a UUID object.
        stamper = Stamper(self._head, self._after, producer, flags)
        line, is_line = stamper.line, suffix == b"\n"
        encode, has_top_member = self._encode, self._has_top_member
        # The encoder writes floats that aren't finite as null.
        nulls, all_finite = not self._check_floats, self._all_finite

        def encode_stamped(message: T, clock: int) -> bytes:
            if has_top_member is None or not has_top_member(message):
                try:
                    document = encode(message)
                except ENCODING_ERRORS:
                    document = b""  # `_split()` says why.
                stamped = line(document, clock, nulls)
                if stamped is None and not nulls and all_finite((message,)):
                    stamped = line(document, clock, True)  # noqa: FBT003
                if stamped is not None:
                    return stamped if is_line else stamped[:-1] + suffix
            head, rest = self._split(message)
            return b"".join((head, stamper.uuid(clock), rest, suffix))

        return encode_stamped

    def lines(self, messages: Sequence[T]) -> Lines | None:
        """Return the documents of messages, or None if one of them needs `split()`."""
        if self._encode_lines is None:
            return None
        try:
            lines = self._encode_lines(messages)
        except ENCODING_ERRORS:
            return None  # `split()` says which one, and why.
        if self._has_top_member is not None and self._may_hold_uuid(lines):
            return None
        count = count_objects(lines, not self._check_floats)
        if count is None and self._check_floats and self._all_finite(messages):
            count = count_objects(lines, True)  # noqa: FBT003
        if count != len(messages):
            return None  # Members of msgspec.Raw may hold newlines.
        return Lines(self._head, self._after, lines, len(messages))

    def split(self, messages: Sequence[T]) -> SplitMessages:
        """Return the documents of messages, without their UUIDs."""
        parts = [self._split(message) for message in messages]
        return SplitMessages([head for head, _ in parts], b"", [rest for _, rest in parts])

    def _may_hold_uuid(self, lines: bytes) -> bool:
        """Return whether encoded messages may have a member on the path to the UUID."""
        return self._top_name + b":" in lines

    def _all_finite(self, messages: Sequence[T]) -> bool:
        """Return whether all floats of messages are known to be finite."""
        try:
            finite = [isfinite(sum(map(read, messages))) for read in self._floats]
        except (AttributeError, TypeError, ValueError, OverflowError):
            return False  # They aren't the floats that the type promises.
        return bool(finite) and all(finite)

    def _split(self, message: T) -> tuple[bytes, bytes]:
        """Return the document of `message` before and after its UUID."""
        try:
            document = self._encode(message)
        except ENCODING_ERRORS as error:
            raise why_not_encodable(message, error, self._enc_hook) from error
        one_line(document)  # Members of msgspec.Raw may be laid out.
        if self._check_floats and _NULL in document:
            # The encoder writes NaN and infinity as null.
            refuse_non_finite(message, self._enc_hook)
        own_uuid = self._has_top_member is not None and self._has_top_member(message)
        return self.split_document(document, own_uuid=own_uuid)

    def split_document(self, document: bytes, *, own_uuid: bool = True) -> tuple[bytes, bytes]:
        """Return a document before and after its UUID, or the place of a UUID that it lacks.

        Args:
            document: A JSON object.
            own_uuid: Whether it may have a member for the UUID.

        Raises:
            ValidationError: It's not an object.
        """
        if not own_uuid:
            if document.startswith(_MEMBER_FOLLOWS):
                return self._head, self._after + document[1:]
            if document == b"{}":
                return self._head, b'"' + self._inner + b"}"
        end = len(self._head) + TEXT_LENGTH
        if (
            document.startswith(self._head)
            and document.find(b'"', len(self._head)) == end
            and document.find(b"\\", len(self._head), end) < 0
        ):
            return self._head, document[end:]
        if document[:1] != b"{":
            raise ValidationError("message must encode to a JSON object")
        return _split_at(document, self.uuid_path)

    def split_unchecked(self, document: bytes) -> tuple[bytes, bytes]:
        """Check that bytes are JSON, and return them as `split_raw()` does.

        Raises:
            ValidationError: They're not an object.
            msgspec.DecodeError: They're not JSON.
            UnicodeDecodeError: They're not UTF-8.
        """
        self._find_uuid(document)
        if not document.isascii():
            document.decode()  # The decoder looks at what leads to the UUID only.
        return self.split_raw(document.lstrip(_SPACE))

    def split_raw(self, document: bytes) -> tuple[bytes, bytes]:
        """Return a document of unknown origin before and after its UUID.

        Of several members of one name on the path to the UUID, the last one is kept.

        Raises:
            ValidationError: It's not an object.
        """
        # Escapes may hide names.
        escapes = b"\\u" in document or b"\\/" in document
        # Hot: most have no such member.
        if not escapes and self._top_name not in document:
            return self.split_document(document, own_uuid=False)
        repeats = escapes or any(document.count(name) > 1 for name in self._names)
        if repeats and document[:1] == b"{":
            # Wire: readers take the last one, which would be another UUID.
            return _split_at(document, self.uuid_path)
        return self.split_document(document)

    def uuid(self, message: T) -> UUID:
        """Return the UUID of `message`; zero if it has none, or its type has no such member.

        Raises:
            ValidationError: Its UUID is invalid.
        """
        kind: Any = type(message)
        if self._enc_hook is not None and is_custom(kind):
            return _as_uuid(find_member(self._enc_hook(message), self.uuid_path))
        return _as_uuid(find_member(message, self.uuid_path))

    def frame_uuid(self, frame: bytes) -> UUID:
        """Return the UUID of a document, without decoding the rest of it.

        Raises:
            ValidationError: Its UUID is invalid.
            msgspec.DecodeError: It's not a JSON object or null.
        """
        return _as_uuid(self._find_uuid(frame))

    @property
    def stamps(self) -> tuple[bytes, bytes]:
        """Bytes before a UUID at the front of a document, and between it and the next member."""
        return self._head, self._after

    def acknowledgement(self, uuid: UUID) -> bytes:
        """Return an acknowledgement, such as `{"_meta":{"uuid":"…","ack":true}}`."""
        return self._head + str(uuid).encode() + b'"' + self._ack


class RawJSONAdapter(JSONAdapter[bytes]):
    """Adapter of JSON documents as bytes, which it doesn't decode."""

    def _may_hold_uuid(self, lines: bytes) -> bool:
        return self._top_name in lines or b"\\" in lines  # Escapes may hide the name.

    def _split(self, message: bytes) -> tuple[bytes, bytes]:
        return self.split_raw(one_line(message))

    def uuid(self, message: bytes) -> UUID:
        """Return the UUID of a document, as `frame_uuid()` does."""
        return self.frame_uuid(message)


def _as_uuid(value: object) -> UUID:
    if value is None:
        return ZERO_UUID
    if isinstance(value, UUID):
        return value
    if isinstance(value, str):
        return parse_uuid(value)
    raise ValidationError(f"UUID is not a string but {type(value).__name__}")


def _split_at(document: bytes, path: tuple[str, ...]) -> tuple[bytes, bytes]:
    """Return `document` before and behind the text at `path`, all else being kept to the byte."""
    try:
        members = msgspec.json.decode(document, type=dict[str, msgspec.Raw])
    except msgspec.ValidationError:
        text = f"message has no JSON object for the member {'.'.join(path)!r} of its UUID"
        raise ValidationError(text) from None
    name, inner_path = path[0], path[1:]
    existing = members.get(name)
    head, rest = b'"', b'"'
    if inner_path:
        inner = b"{}" if existing is None or bytes(existing) == b"null" else bytes(existing)
        head, rest = _split_at(inner, inner_path)
    if existing is None:
        members = {name: msgspec.Raw(), **members}
    texts = [msgspec.json.encode(key) + b":" + bytes(value) for key, value in members.items()]
    at = list(members).index(name)
    head = b",".join([*texts[:at], msgspec.json.encode(name) + b":" + head])
    return b"{" + head, b",".join([rest, *texts[at + 1 :]]) + b"}"


def one_line(document: bytes) -> bytes:
    """Return a document.

    Raises:
        ValidationError: It isn't on one line.
    """
    if b"\n" in document:
        raise ValidationError("message must be a JSON document on one line")
    return document
