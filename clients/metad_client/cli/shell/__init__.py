"""How ``metadctl`` lives in a shell: what it is told once and for all, and the words that the shell completes."""
