"""Connections to the nodes: dialled by the transport that suits the path, and kept up."""
