"""A real Kubernetes cluster on one machine, for tests: built from source, started as plain processes, ended by pid."""
