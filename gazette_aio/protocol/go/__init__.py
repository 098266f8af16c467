"""Text forms of Go which appear on the wire: quoting, templates, and times.

Imports nothing else of this package.
"""
