"""The way of a request from submission to outcome: waiting, in flight, redirected, retried, expired. Opens no
connection."""
