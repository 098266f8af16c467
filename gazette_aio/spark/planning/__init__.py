"""Planning of batches: from options to journals, ranges, tasks and partitions.

Committed rows of a batch: a task per journal, or splits at fragments. The driver reads the UUIDs
once and summarizes each split's effect on producers; then each split delivers exactly its own
bytes, in one pass: what commits after the split comes last, by verdicts of the plan. Declined: a
shuffle into a stateful operator, which moves the payload; filters of queries, as Spark 4.3 keeps
one plan per frame, from the query whose filters came last.
"""
