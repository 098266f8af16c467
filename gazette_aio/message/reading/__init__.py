"""Iterators of messages: sources, pumps, replays, and the forms of results.

Imports every other room of `message`, `client`, `aio` and `protocol`.

Items, batches and Arrow batches come from the same batches of the core, and only their outputs
differ. A given `Sequencer` decides message by message, from all messages that the core reads.

* A checkpoint is as of what was delivered. The reader moves to another journal only when all
  content at hand is delivered, and its thread never works beyond one step ahead.
* A step takes a whole batch of a journal that lags: a step of one chunk costs four times as much
  per byte. The reader waits for more chunks for at most 50 ms, and only if none of another journal
  is ready.
* A step ends at a commit that needs a replay, so that at most one is under way.
* Declined: one read shared by overlapping replays (rare), and counters of outcomes (a cost for
  every message).
"""
