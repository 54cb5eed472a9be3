"""What each client is worth: values of the players of a game, from the utilities of coalitions.

Imports only ``metrics`` and ``system``, and no PyTorch: a game is numbers.
"""
