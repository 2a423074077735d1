"""What metad assigns to brokers: resources and plans, and what a broker does that serves partitions."""
