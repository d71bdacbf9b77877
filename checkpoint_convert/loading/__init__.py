"""Loads what a checkpoint holds into tensors that are there, without writing one first."""
