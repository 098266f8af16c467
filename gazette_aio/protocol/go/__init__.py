"""Go's text forms which are part of the protocol: quoting, durations, templates, times.

Imports nothing else of this package.
"""
