"""marin_core."""
