"""What must hold: of a group at every moment, and of what the clients of whole nodes were told."""
