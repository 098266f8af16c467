"""Fragment files: fetching, decompressing, and reading them by their URLs.

Imports the modules of `client` itself, `aio` and `protocol`.
"""
