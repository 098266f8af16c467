"""Asyncio primitives of the package: owners, locks, threads, turns of the event loop, forks.

Imports nothing else of this package.
"""
