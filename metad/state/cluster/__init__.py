"""What a group knows of the cluster: the map, brokers, fences, slots that move, tenants that end, clients."""
