"""Fragment files: fetching, decompressing, and reading them by their URLs.

Imports metrics of `client`, `client.rpc`, `aio` and `protocol`.
"""
