"""The service stands still for a while, under MQTT brokers with their clients: what must not end by it."""
