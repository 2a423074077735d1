"""The systems that metad is compared with: etcd, gRPC, unmodified aioquic. ``metad-perf compare``, ``grpc`` and
``quic``."""
