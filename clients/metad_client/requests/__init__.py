"""From items to requests of one group each, and from replies back to one outcome per item."""
