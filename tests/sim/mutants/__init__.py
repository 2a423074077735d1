"""Bugs to plant: how one is planted, those of replicas, those of whole nodes and clients."""
