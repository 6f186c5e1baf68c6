"""Hardware from published figures: devices, links, clusters, and profile tables made of them (docs/hardware.md)."""
