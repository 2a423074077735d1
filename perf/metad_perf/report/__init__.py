"""What was measured: latencies as histograms, and what a person and a script get to see."""
