"""From the columns of a table to inputs of a network: what a column is, what is learnt of it from sums, and how it is coded."""
