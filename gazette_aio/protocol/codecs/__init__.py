"""Compression codecs of fragments, with bounds on what they take and give.

Imports `protocol` modules of names and errors.
"""
