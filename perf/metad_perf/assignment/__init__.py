"""``metad-perf assignment``: partitions that metad places on brokers, elects leaders of, and moves."""
