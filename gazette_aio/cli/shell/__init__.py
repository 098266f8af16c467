"""Shared parts of all commands: connections, settings, logs, failures, and output.

It imports no other room of the command line.
"""
