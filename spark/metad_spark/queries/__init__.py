"""Questions to what metad knows, and to what a storm left, as functions of DataFrames. They need no simulation."""
