"""A storm's result as a page: what to tell, HTML, pictures."""
