"""One file for each drill, which reads as its runbook in OPERATE.md."""
