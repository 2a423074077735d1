"""What every table stands on: verbs, entries, views, caches, slots, and the time of the log."""
