"""marin_rigging."""
