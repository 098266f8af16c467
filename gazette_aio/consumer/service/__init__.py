"""Members of consumers: their service, their process and its settings, and how they stop.

Imports all other rooms of `consumer`, `client`, `serving`, `aio` and `protocol`.
"""
