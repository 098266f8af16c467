"""Registers: the label set which travels with a journal, and which appends check and modify."""

from __future__ import annotations

from typing import Final

import gazette_aio.protocol as pb

MAX_REGISTERS_BYTES: Final = 256 << 10
"""Longest registers that an append may leave. They're in memory, in each answer to an append, in
each record that changes them, and the event loop joins them; and whoever may append could add to
them for ever."""


class RegistersTooLongError(Exception):
    """An append is refused for the length of its registers. The text is for the client."""


def check_request(request: pb.AppendRequest) -> None:
    """Check the length of what a request tells about registers, before any of it is looked at.

    Raises:
        RegistersTooLongError: If it's more than registers can have.
    """
    length = request.ByteSize()
    if length > MAX_REGISTERS_BYTES and (length := length - len(request.content)) > (
        MAX_REGISTERS_BYTES
    ):
        raise RegistersTooLongError(
            f"request is too long ({length} bytes; expected <= {MAX_REGISTERS_BYTES})"
        )


def registers_match(registers: pb.LabelSet, selector: pb.LabelSelector | None) -> bool:
    """Return whether an append which checks `selector` may proceed.

    Empty registers match every selector: they are what remains after a loss of the journal's
    brokers, and must not lock out its writers.
    """
    if selector is None or not registers.labels:
        return True
    return pb.selector_matches(selector, registers)


def update_registers(
    registers: pb.LabelSet,
    *,
    union: pb.LabelSet | None,
    subtract: pb.LabelSet | None,
) -> pb.LabelSet:
    """Return the registers after an append has subtracted, and then united, label sets.

    Raises:
        RegistersTooLongError: If they'd be too long, and longer than they are.
    """
    before = registers
    if subtract is not None:
        registers = pb.subtract_label_set(registers, subtract)
    if union is not None:
        registers = pb.union_label_sets(union, registers)
    # Registers of earlier versions may be longer, and can still be made shorter.
    if (length := registers.ByteSize()) > MAX_REGISTERS_BYTES and length > before.ByteSize():
        raise RegistersTooLongError(
            f"registers are too long ({length} bytes; expected <= {MAX_REGISTERS_BYTES})"
        )
    return registers
