"""What metad is compared with: etcd, gRPC, aioquic as it comes. ``metad-perf compare``, ``grpc`` and ``quic``."""
