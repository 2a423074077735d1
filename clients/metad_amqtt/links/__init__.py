"""What brokers pass on to each other: links, their proofs, and who wants which topics."""
