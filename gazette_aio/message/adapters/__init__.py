"""Adapters, which encode, stamp and decode messages: JSON, protobuf, CSV and raw bytes.

Imports `message.framing` and `message.uuid`, and `protocol`.
"""
