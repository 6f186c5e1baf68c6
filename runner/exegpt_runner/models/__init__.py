"""The model families: weights by name, put together from `exegpt_runner.layers`."""
