"""The table of rules, and how the docs draw it."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest

from gazette_aio.message.core.rules import (
    ACK,
    CONTINUE,
    OUTSIDE,
    RULES,
    ClockIs,
    Commits,
    PendingAre,
    Then,
)
from gazette_aio.message.uuid import Flags

ROOT = Path(__file__).parents[3]

FLAGS = {OUTSIDE: str(Flags(OUTSIDE)), CONTINUE: str(Flags(CONTINUE)), ACK: str(Flags(ACK))}
CLOCK = {
    (ClockIs.ZERO,): "0",
    (ClockIs.BELOW,): "below `min`",
    (ClockIs.LAST,): "`min`",
    (ClockIs.BELOW, ClockIs.LAST): "up to `min`",
    (ClockIs.PENDING,): "above `min`, up to `max`",
    (ClockIs.NEW,): "above `max`",
    (ClockIs.PENDING, ClockIs.NEW): "above `min`",
}
PENDING = {
    (PendingAre.NONE,): "nothing",
    (PendingAre.RETAINED,): "retained",
    (PendingAre.EVICTED,): "evicted",
    (PendingAre.RETAINED, PendingAre.EVICTED): "something",
    tuple(PendingAre): "",
}


def table():
    """Return the table as Markdown."""
    lines = ["| flags | clock | pending | commits | new `min`, `max`, `begin` | why |"]
    lines.append("| --- | --- | --- | --- | --- | --- |")
    for rule in RULES:
        flags = "any" if len(rule.flags) == len(FLAGS) else FLAGS[rule.flags[0]]
        commits = "" if rule.commits is Commits.NOTHING else rule.commits.value
        then = "" if rule.then is Then.SAME else rule.then.value
        cells = flags, CLOCK[rule.clock], PENDING[rule.pending], commits, then, rule.reason
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def diagram():
    """Return the states of a producer and what moves it, as Mermaid."""
    names = {PendingAre.NONE: "idle", PendingAre.RETAINED: "pending", PendingAre.EVICTED: "evicted"}
    lines = ["stateDiagram-v2", "    [*] --> idle", "    pending --> evicted : the ring overflows"]
    for rule in RULES:
        for pending in rule.pending:
            if rule.then is not Then.SAME:
                to = {Then.BEGIN: "pending", Then.EXTEND: names[pending], Then.CLOSE: "idle"}
                edge = f"    {names[pending]} --> {to[rule.then]}"
                lines.append(f"{edge} : {rule.outcome.name}")
    return "\n".join(dict.fromkeys(lines))


def test_each_case_has_exactly_one_rule():
    cases = [c for rule in RULES for c in product(rule.flags, rule.clock, rule.pending)]
    assert sorted(cases) == sorted(product(FLAGS, ClockIs, PendingAre))


@pytest.mark.parametrize(
    ("path", "drawing"),
    [("docs/messages.md", table), ("gazette_aio/message/core/rules.py", diagram)],
)
def test_the_docs_draw_the_table(path, drawing):
    text = (ROOT / path).read_text(encoding="utf-8")
    assert drawing() in text, f"put this into {path}:\n{drawing()}"
