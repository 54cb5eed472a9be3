"""Sums over sites that the server can read only whole."""
