"""What a text may be: fields of keys, topics and filters."""
