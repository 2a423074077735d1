"""One node of a storm: its input, its clients, three models of it, and their results."""
