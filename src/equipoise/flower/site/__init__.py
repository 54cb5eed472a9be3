"""A site: its data, its state, its answers."""
