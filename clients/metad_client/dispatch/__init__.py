"""The way of a request to its outcome: waiting, in flight, redirected, retried, expired. Opens no connection."""
