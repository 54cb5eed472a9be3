"""A federation and its rounds: training, checking, evaluation, checkpoints; imports methods, engines, metrics and what is below them."""
