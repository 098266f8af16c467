"""Registers: a journal's label set that appends check and modify."""

from __future__ import annotations

from typing import Final

import gazette_aio.protocol as pb

MAX_REGISTERS_BYTES: Final = 256 << 10
"""Longest registers after an append, in bytes. Registers are in memory, in each response to an
append, and in each record that changes them, and every writer can add labels."""


class RegistersTooLongError(Exception):
    """An append is refused because its registers are too long. The text is for the client."""


def check_request(request: pb.AppendRequest) -> None:
    """Check the length of a request's label sets of registers, before they are read.

    Raises:
        RegistersTooLongError: The label sets are longer than registers can be.
    """
    length = request.ByteSize()
    if length > MAX_REGISTERS_BYTES and (length := length - len(request.content)) > (
        MAX_REGISTERS_BYTES
    ):
        raise RegistersTooLongError(
            f"request is too long ({length} bytes; expected <= {MAX_REGISTERS_BYTES})"
        )


def registers_match(registers: pb.LabelSet, selector: pb.LabelSelector) -> bool:
    """Return whether an append which checks `selector` may proceed.

    Empty registers match every selector: registers are empty after a loss of the journal's brokers,
    and writers must not be locked out.
    """
    return not registers.labels or pb.selector_matches(selector, registers)


def update_registers(registers: pb.LabelSet, request: pb.AppendRequest) -> pb.LabelSet:
    """Return the registers after an append, which subtracts label sets before it unites them.

    Raises:
        RegistersTooLongError: The registers would be too long.
    """
    if request.HasField("subtract_registers"):
        registers = pb.subtract_label_set(registers, request.subtract_registers)
    if request.HasField("union_registers"):
        registers = pb.union_label_sets(request.union_registers, registers)
    if (length := registers.ByteSize()) > MAX_REGISTERS_BYTES:
        raise RegistersTooLongError(
            f"registers are too long ({length} bytes; expected <= {MAX_REGISTERS_BYTES})"
        )
    return registers
