"""Framings as users write them: one of their own, and subclasses of a built-in one."""

from __future__ import annotations

from gazette_aio.message.framing import Frames, Framing, NDJSONFraming
from gazette_aio.message.framing.ndjson import LineDecoder

NDJSON = NDJSONFraming.content_type
SWAP = bytes.maketrans(b"\n;", b";\n")
COMMENT = b" # checked"


class SemicolonDecoder(LineDecoder):
    def feed(self, chunk):
        super().feed(chunk.translate(SWAP))

    def frames(self):
        frames = super().frames()
        if frames is None:
            return None
        return Frames(frames.begin, [p.translate(SWAP) for p in frames.payloads], frames.ends)


class SemicolonFraming(Framing):
    """A framing of someone's own, whose payloads may hold newlines."""

    content_type = NDJSON
    suffix = b";"

    def encode(self, message):
        return message + b";"

    def decoder(self, offset=0, *, max_frame_bytes=1 << 30):
        return SemicolonDecoder(offset, max_frame_bytes=max_frame_bytes)


class SameFraming(NDJSONFraming):
    """A subclass which changes nothing."""


class CommentDecoder(LineDecoder):
    def frames(self):
        frames = super().frames()
        if frames is None:
            return None
        return Frames(frames.begin, [p.removesuffix(COMMENT) for p in frames.payloads], frames.ends)


class CommentFraming(NDJSONFraming):
    """A subclass which changes what frames hold besides their message."""

    def encode(self, message):
        return super().encode(message + COMMENT)

    def decoder(self, offset=0, *, max_frame_bytes=1 << 30):
        return CommentDecoder(offset, max_frame_bytes=max_frame_bytes)


OWN_FRAMINGS = [SemicolonFraming(), SameFraming(), CommentFraming()]
