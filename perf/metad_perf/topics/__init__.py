"""The metadata of many topics in a declared table: ``metad-perf topics``."""
