"""The `exegpt` command: plan, profile, serve, bench, explain, demo."""
