"""What a person looks at when something is wrong: what has changed, and what goes on now."""
