"""Providers: who gives the machines. Each file one way to start a gang and to end it."""
