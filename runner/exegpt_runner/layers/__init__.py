"""What a transformer layer computes, on packed rows.

Letters in shapes: T packed rows (tokens) of a step, E hidden size, H query heads, G key-value heads, D head size,
F feed-forward size, V vocabulary, S KV tokens a query attends to, C capacity of the KV arena in tokens.

Nothing here knows a query: a `Batch` says where each row's keys and values lie.
"""
