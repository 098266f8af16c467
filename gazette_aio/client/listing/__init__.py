"""Listing and applying journals: single calls, watches, and lists which are kept up to date.

Imports `client.rpc`, the modules of `client` itself, `aio` and `protocol`.
"""
