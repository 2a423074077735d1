"""What every experiment has: the nodes that it starts, processes beside them, a story, problems, and its report."""
