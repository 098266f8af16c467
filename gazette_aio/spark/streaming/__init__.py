"""Streams: positions of queries, plans of their batches, and the readers which Spark calls.

Offsets are canonical text: Spark compares text, and another order of keys makes endless empty
batches. The end of the first batch includes the query's beginning, which Spark doesn't keep.
"""
