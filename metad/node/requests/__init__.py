"""The way of a request in a node: what is let in, what waits, who is next, and what reads."""
