"""Services: one module for each kind of request, independent of the front ends.

Imports `broker.core` and the rooms below it, `serving`, `aio` and `protocol`.
"""
