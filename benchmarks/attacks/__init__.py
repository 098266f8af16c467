"""Attacks with random input, and the invariants that each must leave whole."""
