"""Model families, one file each, on the shared layers."""
