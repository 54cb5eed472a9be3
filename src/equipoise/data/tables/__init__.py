"""Tables: the purpose of each column, what its cells mean, what is learnt of it from sums, and how it is coded.

Imports ``data`` and ``system``.
"""
