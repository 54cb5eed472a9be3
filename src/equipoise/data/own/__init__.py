"""The user's own data: folders, tables, arrays, the Hugging Face Hub.

Imports ``data`` and ``system``.
"""
