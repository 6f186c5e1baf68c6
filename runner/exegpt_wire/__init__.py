"""The gRPC messages between conductor and workers; no torch, no policy."""
