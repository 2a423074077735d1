"""Adapters of brokers that others have written. Each needs an extra of its own; nothing else of the SDK imports it."""
