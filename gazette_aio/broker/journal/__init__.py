"""A served journal: its write head, its listings of stores, persisting, and the rules of appends.

Imports `broker.fragments`, `broker.host`, `broker.stores`, `broker.keyspace`, `aio` and `protocol`.
"""
