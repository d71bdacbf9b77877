"""Outputs on this machine and behind URLs. They appear whole or not at all."""
