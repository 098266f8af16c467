"""What a member keeps of shards that have ended, and what its collections of garbage look at."""

from __future__ import annotations

import gc
import logging
import weakref
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import pytest

from gazette_aio.consumer import Skip
from gazette_aio.testing import consumer_harness
from tests.consumer.recoverylog.player.logs import create_log
from tests.consumer.service.applications import SOURCE, Summing, create_source, publish, shard_spec
from tests.consumer.service.recorded import RecordedSum
from tests.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gazette_aio.consumer import Application, Shard


class Failing(Summing):
    """Refuses its messages."""

    def consume_message(self, *_: Any) -> None:
        """Fail the shard."""
        raise ValueError("no such number")


class Skipping(Failing):
    """Skips its messages."""

    def on_message_error(self, *_: Any) -> Skip:
        """Pass over them."""
        return Skip()


@pytest.fixture
def only_references() -> Iterator[None]:
    """Free what nothing refers to, and no cycles."""
    logging.disable()  # Tests keep records, and with them the frames of errors.
    gc.disable()
    yield
    gc.enable()
    logging.disable(logging.NOTSET)


@pytest.mark.usefixtures("only_references")
@pytest.mark.parametrize("made", [Summing, RecordedSum, Failing, Skipping])
async def test_a_shard_that_has_ended_is_freed_without_a_collection(
    made: type[Application[Any, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thousands that end together would be one long collection, which holds up the event loop."""
    shards: list[weakref.ref[Shard]] = []
    new_store = made.new_store

    def noting(self: Any, shard: Shard, recorder: Any) -> object:
        shards.append(weakref.ref(shard))
        return new_store(self, shard, recorder)

    monkeypatch.setattr(made, "new_store", noting)
    async with consumer_harness(made()) as harness:
        await create_source(harness.client)
        await create_log(harness.client, "recovery/shard-one")
        await harness.start_member()
        spec = shard_spec("shard-one", SOURCE)
        if made is RecordedSum:
            spec.recovery_log_prefix, spec.hint_prefix = "recovery", "/hints"
        await harness.create_shards(spec)
        await publish(harness.client, range(3))
        with nullcontext() if made is not Failing else pytest.raises(RuntimeError, match="failed"):
            await harness.wait_for_shards()
        await harness.unassign("shard-one")
        await eventually(lambda: len(shards) == 2)
        await eventually(lambda: shards[0]() is None)
