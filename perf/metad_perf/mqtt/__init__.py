"""``metad-perf mqtt``: real MQTT clients on brokers that share their sessions through metad."""
