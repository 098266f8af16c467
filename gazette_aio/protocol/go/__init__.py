"""Go's text forms which are part of the protocol: quoting, durations, files of settings.

Imports nothing else of this package.
"""
