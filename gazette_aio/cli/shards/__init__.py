"""Commands of shards, and of their recovery logs.

It may import `cli.specs` and `cli.shell`.
"""
