"""Sequencing: which messages commit, in which order, and which must be read again.

Imports `message.envelopes` and `protocol`.
"""
