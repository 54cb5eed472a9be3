"""What a method is made of: models as vectors, rules and their hooks, solvers, random draws, state; imports ``system`` and samples only."""
