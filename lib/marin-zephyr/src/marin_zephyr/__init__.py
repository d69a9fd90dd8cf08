"""marin_zephyr."""
