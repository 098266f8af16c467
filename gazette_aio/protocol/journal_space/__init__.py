"""Journal spaces: trees of journal specs, and their YAML.

Imports `protocol.spaces`, journal specs, names and errors.
"""
