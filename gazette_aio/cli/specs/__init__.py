"""Specs of journals and of shards: how commands choose, list, apply and edit them.

It may import `cli.shell`.
"""
