"""The clients' data: tensors in memory, or any data set read as it is needed.

Imports ``system`` only, and nothing by itself: the command line reads the names of options from it, without PyTorch.
"""
