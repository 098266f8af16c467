"""Authorization of RPCs: claims, and the tokens that carry them.

Imports the messages, names and errors of `protocol`.
"""
