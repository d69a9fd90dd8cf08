"""marin_delphi."""
