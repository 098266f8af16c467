"""Integrations with other packages, one module for each.

Imports `protocol` and the integrated packages.
"""
