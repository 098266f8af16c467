"""Consumer framework: applications that transform messages with exactly-once state.

Imports `message`, `client`, `serving`, `aio` and `protocol`.
"""
