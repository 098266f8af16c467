"""Files of specs, and their editing.

It may import `cli.shell`.
"""
