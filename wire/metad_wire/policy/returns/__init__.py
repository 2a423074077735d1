"""When those come back for whom there was no room."""
