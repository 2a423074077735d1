"""The replicas of a node: what drives each, and what is told of them."""
