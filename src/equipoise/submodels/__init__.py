"""Submodels: the hidden units of a network, and the importance of each.

Imports ``core`` and ``system``.
"""
