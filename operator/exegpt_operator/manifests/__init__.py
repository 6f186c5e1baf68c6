"""The objects that are made for a deployment or a profile, as pure functions of what was asked for and planned."""
