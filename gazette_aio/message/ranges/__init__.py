"""Committed messages of ranges of a journal, for readers that work in parallel.

Imports `message.sequencing`, `message.columns` and `protocol`.

The effect of a part of a journal on a producer's state is a function with five numbers, so that
summaries compose exactly, even for malformed histories.
"""
