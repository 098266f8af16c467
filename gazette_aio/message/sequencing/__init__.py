"""Sequencing: which messages are committed, in which order, and what has to be read again.

Imports `message.envelopes` and `protocol`.
"""
