"""Rows come from elsewhere: slots move between groups, and backups are restored."""
