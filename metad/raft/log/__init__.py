"""The log of a replica: its entries, who writes them, and how long the disk takes."""
