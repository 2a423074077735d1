"""What operators see of a node without its protocol: metrics, and whether it lives and is ready, over HTTP."""
