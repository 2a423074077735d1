"""The registry of brokers."""
