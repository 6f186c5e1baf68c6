"""The runner: models, KV arena, step engine, and the worker process that serves them over gRPC. Knows no policy."""
