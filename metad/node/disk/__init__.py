"""What a node keeps, and what it gives and takes as a whole: stores, checkpoints, snapshots, room."""
