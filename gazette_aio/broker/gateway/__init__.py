"""HTTP gateway: journals over plain HTTP, a JSON form of two RPCs, and diagnostics.

The library behind it is imported with the module `gateway`, which takes a while.
"""
