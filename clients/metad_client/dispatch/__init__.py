"""A request from submission to outcome: waiting, in flight, sent elsewhere, retried, late. Opens no connection."""
