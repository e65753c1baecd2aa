"""Runs as they lie in their folders, for all who use them afterwards."""
