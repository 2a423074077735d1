"""Sessions with all that is theirs: subscriptions, messages in flight, wills."""
