"""Fence of a publisher's identity: a register of a journal, which one owner holds at a time.

The value of the register is the owner's epoch, a nonce, and the ID of the latest transaction that
was decided. All changes compare and set it:

* A new owner takes the fence: the epoch increases, and the decided transaction stays.
* The owner decides a transaction, whose record is stored: the epoch stays.

So a former owner, which may run on, pause and awake at any moment, decides nothing more, and the
new owner knows which of its records count.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Self

import gazette_aio.protocol as pb
from gazette_aio.message.publishing.intent_files import RecordID
from gazette_aio.protocol.errors import StoreError
from gazette_aio.protocol.status_errors import RegisterMismatchError

if TYPE_CHECKING:
    from gazette_aio.client import AsyncJournalClient


@dataclass(frozen=True, slots=True)
class Fence:
    """Identity of a publisher, which one process at a time holds.

    Args:
        journal: Journal whose registers hold identities. It has no other content than the lines
            that changes of identities append. Any number of identities may share it.
        name: Name of the identity: 2 to 64 letters, digits and symbols, as in names of labels.

    Raises:
        ValidationError: A name isn't valid.
    """

    journal: str
    name: str

    def __post_init__(self) -> None:
        pb.validate(pb.AppendRequest(journal=self.journal))
        if not self.journal:
            raise pb.ValidationError("a fence needs a journal")
        pb.label_set(self.name, "value")


class Hold(NamedTuple):
    """Value of the register of an identity."""

    epoch: int
    """Number of the owner; each new one is greater."""
    nonce: str
    """Distinguishes owners that competed for one epoch."""
    record: RecordID
    """Record of the latest transaction that was decided."""

    @classmethod
    def after(cls, epoch: int, record: RecordID) -> Self:
        """Return the hold of the next owner."""
        return cls(epoch + 1, secrets.token_hex(8), record)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the hold of the text of a register.

        Raises:
            StoreError: The text isn't one of a hold.
        """
        try:
            epoch, nonce, writer, number = text.split("-")
            return cls(int(epoch), nonce, RecordID(int(writer), int(number)))
        except ValueError:
            raise StoreError(f"register {text!r} isn't that of a fence") from None

    def __str__(self) -> str:
        return f"{self.epoch}-{self.nonce}-{self.record.epoch}-{self.record.number}"


async def read_hold(appends: AsyncJournalClient, fence: Fence) -> Hold | None:
    """Return the value of the register of a fence, or None if it's absent.

    Raises:
        GazetteError: The append of no bytes, which returns the registers, failed.
        StoreError: The register isn't that of a fence.

    Cancellation: safe.
    """
    return await _append(appends, fence, pb.AppendRequest(journal=fence.journal), b"")


async def swap_hold(
    appends: AsyncJournalClient, fence: Fence, held: Hold | None, wanted: Hold
) -> Hold | None:
    """Replace the value `held` of the register by `wanted`, and return the value thereafter.

    Raises:
        GazetteError: The append failed. The value may be replaced, now or later.
        StoreError: The register isn't that of a fence.

    Cancellation: aborts — the value may be replaced, now or later.
    """
    name = fence.name
    request = pb.AppendRequest(
        journal=fence.journal, union_registers=pb.label_set(name, str(wanted))
    )
    if held is None:
        request.check_registers.exclude.CopyFrom(pb.label_set(name, ""))
    else:
        request.check_registers.include.CopyFrom(pb.label_set(name, str(held)))
    line = {
        "fence": name,
        "epoch": wanted.epoch,
        "record": f"{wanted.record.epoch}-{wanted.record.number}",
        "host": socket.gethostname(),
        "pid": os.getpid(),
    }
    content = json.dumps(line, separators=(",", ":")).encode() + b"\n"
    while True:
        found = await _append(appends, fence, request, content)
        # Race: an append fails along with an earlier one of its journal, such as a swap of
        # another identity in this process. Then nothing has changed, and this one is repeated.
        if found != held:
            return found


async def _append(
    appends: AsyncJournalClient, fence: Fence, request: pb.AppendRequest, content: bytes
) -> Hold | None:
    """Append, or be refused, and return the value of the register thereafter."""
    append = await appends.start_append(request)
    append.write(content)
    append.release()
    try:
        response = await append
    except pb.GazetteError as error:
        # Each append to this journal has a check of its own, and follows no other.
        appends.clear_error(fence.journal)
        if not isinstance(error, RegisterMismatchError) or error.response is None:
            raise
        response = error.response
    values = pb.values_of(response.registers, fence.name)
    return Hold.parse(values[0]) if values else None
