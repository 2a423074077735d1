"""The commands about what is kept: one module for each family."""
