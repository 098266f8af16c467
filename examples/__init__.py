"""Programs which show the package at work; every one of them is run by a test."""
