"""Logs of random histories that were pruned, played from each of the hints that counted."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import pytest

from gazette_aio.consumer.recoverylog import FSM, live_nodes, pruning
from gazette_aio.consumer.recoverylog.hints import shrink_hints
from gazette_aio.consumer.recoverylog.playing import ranges
from gazette_aio.consumer.recoverylog.playing.files import StagedFiles
from gazette_aio.consumer.recoverylog.playing.playback import Playback
from gazette_aio.consumer.recoverylog.pruning import PruningPlan, ShardHints, plan_pruning
from gazette_aio.protocol.errors import RecoveryError
from gazette_aio.protocol.recoverylog import FSMHints
from tests import extent
from tests.consumer.recoverylog.player.logs import LogWriter, files_of

Fragments = dict[str, list[tuple[int, int]]]


class History:
    """Operations at random, of several authors and in several logs, and hints of some moments."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.writer = LogWriter(log="logs/0")
        self.contents = {"logs/0": b""}
        self.ends: dict[str, list[int]] = {"logs/0": []}
        self.hints: list[FSMHints] = []
        for _ in range(self.random.randrange(20, 160)):
            before = len(self.writer.content)
            self._step()
            log = self.writer.log
            self.contents[log] += self.writer.content[before:]
            self.ends[log].append(self.writer.offset)
            if self.random.random() < 0.12:
                self._hint()

    def _step(self) -> None:
        writer, source = self.writer, self.random
        paths = sorted(writer.fsm.links)
        kind = source.random()
        fresh = f"/{source.choice('abc')}{writer.fsm.next_seq_no}"
        if not paths or kind < 0.2:
            writer.create(fresh)
        elif kind < 0.62:
            # Some files are written often, and others rarely.
            path = source.choice(paths[:2] if source.random() < 0.5 else paths)
            offset = source.randrange(len(writer.files[writer.fsm.links[path]]) + 1)
            writer.write(path, source.randbytes(source.randrange(1, 60)), offset)
        elif kind < 0.67:
            writer.link(source.choice(paths), fresh)
        elif kind < 0.88:
            writer.unlink(source.choice(paths))
        elif kind < 0.91:
            writer.set_property("/IDENTITY", fresh)
        else:
            writer.author = source.randrange(1, 1 << 31)
            if kind > 0.985:
                writer.log = f"logs/{len(self.contents)}"
                writer.offset, self.contents[writer.log], self.ends[writer.log] = 0, b"", []
            writer.op()

    def _hint(self) -> None:
        hints = self.writer.hints
        if self.random.random() < 0.3:
            shrink_hints(hints, self.random.choice((1, 600, 1500)))
        try:
            FSM(hints)
        except RecoveryError:
            return  # Nothing live was recorded in the latest log so far.
        self.hints.append(hints)

    def fragments(self) -> Fragments:
        """Return where fragments of each log begin and end, which is between operations."""
        cuts = {
            log: sorted({0, *self.random.sample(ends, self.random.randrange(len(ends))), ends[-1]})
            for log, ends in self.ends.items()
        }
        return {log: list(itertools.pairwise(each)) for log, each in cuts.items()}


def pruned(fragments: Fragments, plan: PruningPlan) -> Fragments:
    return {
        log: [each for each in of_log if plan.needs(log, *each)]
        for log, of_log in fragments.items()
    }


def play(history: History, hints: FSMHints, files: StagedFiles, kept: Fragments) -> None:
    """Play what is left of logs. A player never comes upon a hole."""
    playback = Playback(hints, files)
    heads = {log: len(history.contents[log]) for log in playback.logs}
    playback.begin(heads)
    for part in playback.ranges():
        end = part.end or heads[part.log]
        left = [each for each in kept[part.log] if each[0] < end and each[1] > part.begin]
        assert left[0][0] <= part.begin
        assert left[-1][1] >= end
        assert all(first[1] == second[0] for first, second in itertools.pairwise(left))
    while playback.fsm.hinted_segment or playback.offset < playback.last_head:
        playback.check_hints()
        content = history.contents[playback.log]
        begin, end = playback.offset, playback.ranges()[0].end
        playback.play(begin, [content[begin : end if end > begin else len(content)]])
    playback.check_history()
    files.make_live(playback.fsm)


@pytest.mark.parametrize("seed", extent.seeds(60))
def test_files_are_recovered(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_nodes, "SPLIT_GAP_BYTES", 150)
    for module in (pruning, ranges):
        monkeypatch.setattr(module, "READ_THROUGH_BYTES", 100)
    history = History(seed)
    hints = [each for each in history.hints if each.live_nodes and each.log == history.writer.log]
    if not hints:
        return
    counted = history.random.sample(hints, min(len(hints), 3))
    plan = plan_pruning([ShardHints("a-shard", history.writer.log, counted)], ["a-shard"])
    assert not plan.incomplete
    kept = pruned(history.fragments(), plan)
    for number, each in enumerate(counted):
        directory = tmp_path / str(number)
        files = StagedFiles(directory)
        files.prepare(wipe=False)
        play(history, each, files, kept)
        assert files_of(directory) == history.writer.expected()
