"""Committed messages of ranges of a journal, for readers which work in parallel.

Imports `message.sequencing`, `message.columnar` and `protocol`.
"""
