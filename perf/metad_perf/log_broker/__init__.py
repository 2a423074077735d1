"""A replicated log on brokers whose partitions metad assigns, under faults."""
