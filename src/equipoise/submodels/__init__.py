"""Parts of a network: its hidden units, and what each is worth.

Imports ``core`` and ``system``.
"""
