"""The server between sites."""
