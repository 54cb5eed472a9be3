"""A federation and its rounds: training, checks, evaluation, checkpoints; imports methods, engines, metrics and lower layers."""
