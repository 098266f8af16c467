"""Compression codecs of fragments with bounded steps, and verified fragment content.

Imports `protocol` modules of names and errors.
"""
