"""Assignment: the engine that decides which brokers have a partition, and which of them leads it."""
