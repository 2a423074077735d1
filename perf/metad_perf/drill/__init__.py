"""The operator's drills: trouble on a real cluster, and what status, logs and clients say about it."""
