"""Validation rules of messages, with the texts of brokers.

Imports the generated messages, labels, names and errors of `protocol`.
"""
