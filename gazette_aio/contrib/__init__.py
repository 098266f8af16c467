"""Integrations with other packages, one module for each.

Imports `message`, `protocol` and the integrated packages.
"""
