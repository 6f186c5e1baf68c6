"""KV from one worker to another over gRPC: tensors in, tensors out, no engine and no policy.

A sender pushes layers as they are computed, a receiver's `Landing` keeps them until they are taken or forgotten. The
stream's form is in worker.proto, why it is gRPC and how fast it goes in docs/decisions/0010-kv-over-grpc.md.
"""
