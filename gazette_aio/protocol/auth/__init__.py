"""Authorization of RPCs: claims, and the tokens which carry them.

Imports the messages, names and errors of `protocol`.
"""
