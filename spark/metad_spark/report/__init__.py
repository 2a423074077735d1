"""A storm's result as a page: content, HTML, pictures."""
