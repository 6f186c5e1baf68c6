"""The load generator: `exegpt bench`, and the load of `exegpt demo`."""
