"""Rows that last for as long as somebody speaks for them."""
