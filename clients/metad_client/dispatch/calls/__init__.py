"""A call from its beginning to its end: identity, deadline, attempts."""
