"""Recovery logs: journals that record every change of a store's files, and play it back elsewhere.

Imports `aio`, `client`, `message.framing` and `protocol`. What decides is pure.

A file is an *fnode*: a number that never changes while its paths do. Each operation carries a
sequence number, the checksum of all operations before it, and its author, so that a reader accepts
an operation only if it extends exactly the history that it has read. *Hints* name the live fnodes
and the segments of the log that hold their operations.

* Offsets are known late. Positions of a history are mapped to offsets when hints are built, which
  waits for a barrier. So hints have exact ends, and playback and pruning know what is missing.
* Hints are made to be read. A file's segment ends at a gap of more than 4 MiB, which playback
  skips, except after the creation of the newest live file: there, other implementations need all
  segments. Hints beyond 256 KiB are joined across their smallest gaps. `build_hints()` raises if
  playback would refuse the result. They're stored every five minutes, after each `hints_bytes`, and
  when a member begins to exit.
* A hole must be followed by the history. After an unexplained hole, an operation has to continue
  the history; otherwise the hole may have held acknowledged operations. Logs that another
  implementation continued remain playable.
* Pruning keeps what it can't judge, and refuses if hints are missing. Short gaps stay: playback
  reads through them.
"""

from __future__ import annotations

from gazette_aio.consumer.recoverylog.author import MAX_AUTHOR, Author
from gazette_aio.consumer.recoverylog.decoder import LogDecoder
from gazette_aio.consumer.recoverylog.fsm import FSM, Outcome
from gazette_aio.consumer.recoverylog.hints import decode_hints, encode_hints, live_log_segments
from gazette_aio.consumer.recoverylog.live_nodes import LiveNode
from gazette_aio.consumer.recoverylog.operations import (
    content_checksum,
    encode_operation,
    next_checksum,
)
from gazette_aio.consumer.recoverylog.playing.holes import LogHole
from gazette_aio.consumer.recoverylog.playing.playback import PlaybackError
from gazette_aio.consumer.recoverylog.playing.player import Player, Resolved
from gazette_aio.consumer.recoverylog.playing.progress import PlaybackProgress
from gazette_aio.consumer.recoverylog.recording.barrier import Barrier
from gazette_aio.consumer.recoverylog.recording.encoder import LogEncoder
from gazette_aio.consumer.recoverylog.recording.errors import RecorderError, RecorderFencedError
from gazette_aio.consumer.recoverylog.recording.recorded_dir import RecordedDir, RecordedFile
from gazette_aio.consumer.recoverylog.recording.recorder import Recorder
from gazette_aio.consumer.recoverylog.segments import Segment, SegmentError, SegmentSet

__all__ = [
    "FSM",
    "MAX_AUTHOR",
    "Author",
    "Barrier",
    "LiveNode",
    "LogDecoder",
    "LogEncoder",
    "LogHole",
    "Outcome",
    "PlaybackError",
    "PlaybackProgress",
    "Player",
    "RecordedDir",
    "RecordedFile",
    "Recorder",
    "RecorderError",
    "RecorderFencedError",
    "Resolved",
    "Segment",
    "SegmentError",
    "SegmentSet",
    "content_checksum",
    "decode_hints",
    "encode_hints",
    "encode_operation",
    "live_log_segments",
    "next_checksum",
]
