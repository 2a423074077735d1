"""What a node asks of others: of leaders, of brokers, and what its parts send to peers."""
