"""What a run has recorded: the record of each round, the run's history, numbers that summarise it, reading its directory.

Imports ``metrics`` and ``system``, and no PyTorch.
"""
