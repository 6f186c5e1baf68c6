"""The Kubernetes operator: what to do next, decided by pure functions, and one module that touches the API server."""
