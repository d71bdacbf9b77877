"""What the adapters of all frameworks share: blocks, keys, drafts, and code that is written for people."""
