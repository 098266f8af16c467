"""Scenarios recorded from a real consumer, replayed on members of this package."""
