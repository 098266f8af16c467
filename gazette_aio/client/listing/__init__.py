"""Listing and applying journals: single calls, watches, and lists that are kept up to date.

Imports `client.context` and the rooms and modules below it, `aio` and `protocol`.
"""
