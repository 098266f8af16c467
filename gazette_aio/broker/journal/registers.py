"""Registers: the label set which travels with a journal, and which appends check and modify."""

from __future__ import annotations

import gazette_aio.protocol as pb


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
    """Return the registers after an append has subtracted, and then united, label sets."""
    if subtract is not None:
        registers = pb.subtract_label_set(registers, subtract)
    if union is not None:
        registers = pb.union_label_sets(union, registers)
    return registers
