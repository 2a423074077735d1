"""A storm at the level of requests: brokers with the SDK's calls, nodes with the server's own policies, and the cores
of a machine that they share. It predicts the storms of ``metad-perf storm``; :mod:`metad_spark.validation` compares.
"""
