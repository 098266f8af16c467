"""Shared parts of all commands: connections, settings, logs, failures, and output.

Imports no other part of `cli`.
"""
