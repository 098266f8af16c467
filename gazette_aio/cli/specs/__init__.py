"""Files of specs, their editing, and differences between them.

It may import `cli.shell`.
"""
