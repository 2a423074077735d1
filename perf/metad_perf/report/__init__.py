"""Reports of measurements: latencies as histograms, and the output for people and scripts."""
