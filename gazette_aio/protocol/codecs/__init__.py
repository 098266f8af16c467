"""Compression codecs of fragments, with bounds on what they take and give, and checked content.

Imports `protocol` modules of names and errors.
"""
