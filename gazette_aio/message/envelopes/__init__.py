"""Envelopes: messages with their places, split from content and stamped with their UUIDs.

Imports `message.adapters`, `message.framing` and `protocol`.
"""
