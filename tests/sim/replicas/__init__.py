"""Replicas alone, on simulated disks and links: the world they live in, faults by seed, and scenarios by hand."""
