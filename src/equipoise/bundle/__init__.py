"""A trained model that one can take home: network, weights, schema, measures and a model card, in a folder without any code."""
