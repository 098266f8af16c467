"""Asyncio primitives which everything above shares: owners, locks, threads, turns of the loop.

Imports nothing else of this package.
"""
