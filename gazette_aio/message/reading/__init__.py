"""Iterators of messages: sources, pumps, replays, and the forms of results.

Imports every other room of `message`, `client`, `aio` and `protocol`.
"""
