"""Committed messages of ranges of a journal, for readers that work in parallel.

Imports `message.sequencing`, `message.columns` and `protocol`.
"""
