"""marin_train."""
