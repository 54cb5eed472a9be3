"""Readers of the papers' data sets in their published files.

Imports ``data`` and ``system``.
"""
