"""What the callback does in Composer's Trainer: shards, loads, divides batches, evaluates."""
