"""Layers on packed tokens. Shapes: T tokens, H query heads, G KV heads, D head dimension, E hidden, F feed-forward, S context."""
