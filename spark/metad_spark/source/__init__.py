"""metad as a source and a sink of Spark: its tables as DataFrames, their changes as streams. docs/spark_source.md."""
