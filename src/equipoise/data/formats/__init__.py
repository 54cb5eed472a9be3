"""Readers of the user's own files: folders, tables, arrays, the Hugging Face Hub.

Imports ``data``, ``data.tables`` and ``system``.
"""
