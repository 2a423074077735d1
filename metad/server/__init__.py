"""Connections: of clients and of other nodes, what they may do, and how much they may make the server hold.

- :mod:`.serve`: listen, stop on signals
- :mod:`.connection`: one client's connection: frames in, replies out, bounds kept
- :mod:`.access`: what the holder of a certificate or token may do
- :mod:`.peers`: connections between nodes
"""
