"""What the programs have in common as processes: output, lines of logs, signals, forks, descriptors."""
