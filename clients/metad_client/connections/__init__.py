"""Connections to the nodes: dialled by the transport that suits the path, kept up, and their streams of frames."""
