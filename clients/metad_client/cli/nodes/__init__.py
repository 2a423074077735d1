"""What is done to single nodes of a cluster."""
