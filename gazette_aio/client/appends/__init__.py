"""Appends: one RPC, one append with retries, and the service that batches appends.

Imports `client.reads`, `client.context` and the rooms and modules below it, `aio` and `protocol`.
"""
