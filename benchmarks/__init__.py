"""Figures of the pure parts, measured without engines: how well requests are routed, and how fast."""
