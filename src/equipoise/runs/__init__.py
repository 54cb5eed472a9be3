"""Runs as directories: configuration, execution, comparison, the papers' experiments."""
